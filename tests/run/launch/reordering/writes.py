"""Models that write in place."""

from typing import Any

import torch
from architectures.base import noise
from run.launch.reordering.case import SHIFTS, case
from run.launch.reordering.models import Shift, linear
from same import ROUNDING
from torch import Tensor, nn
from torch.nn import functional as F


@case(**SHIFTS)
def in_place_on_deferred(net: Any, x: Tensor) -> Tensor:
    a, b = net.a(x), net.b(x)
    c = net.c(a)
    a.add_(1)
    a *= 2
    b[...] = a
    b[:, 0] = 0.5
    d = net.d(b)
    torch.relu_(a)
    e: Tensor = net.e(x)
    return c + d + a + e


@case(**SHIFTS, tolerance=ROUNDING)
def written_between_readers(net: Any, x: Tensor) -> Tensor:
    h = net.a(x)
    b, c = net.b(h), net.c(h)
    h.mul_(3)
    d = net.d(h)
    h.sub_(1)
    e: Tensor = net.e(x)
    return b * c + d + h + e


@case(**SHIFTS)
def views_of_deferred(net: Any, x: Tensor) -> Tensor:
    h = net.a(x)
    left, right = h[:, :4], h[:, 4:]
    left.mul_(0.5)
    b = net.b(h)
    right[0] = left.detach()[1]
    flat = h.view(-1)
    flat[3:5].zero_()
    h.T[2].add_(1)
    c = net.c(h)
    first, second = h.detach().chunk(2, dim=-1)
    first.mul_(2)
    one, *_ = h.detach().split(3, dim=-1)
    one.sub_(second[:, :3])
    d = net.d(h)
    e: Tensor = net.e(x)
    return b + c + d + h + e


@case(**SHIFTS)
def write_under_waiting_readers(net: Any, x: Tensor) -> Tensor:
    q = x * 1
    b, c = net.b(q), net.c(q)
    q.mul_(-1)
    d = net.d(q)
    q[:, ::2] = 0.25
    e: Tensor = net.e(x)
    return b + c * 2 + d + q + net.a(e)


@case(**SHIFTS)
def input_written(net: Any, x: Tensor) -> Tensor:
    b, c = net.b(x), net.c(x)
    x.add_(1)
    d: Tensor = net.d(x)
    return b + c * 2 + d + net.e(x * 2)


@case(**SHIFTS)
def functions_that_write_when_asked(net: Any, x: Tensor) -> Tensor:
    q = x * 1
    b, c = net.b(q), net.c(q)
    F.relu(q, inplace=True)
    d = net.d(q)
    F.leaky_relu(q - 1, 0.1, True)
    F.hardtanh(q, -0.5, 0.5, inplace=True)
    e: Tensor = net.e(x)
    return b + c * 2 + d + q + e


@case(**SHIFTS)
def lists_written(net: Any, x: Tensor) -> Tensor:
    q, r = x * 1, x * 2
    b, c = net.b(q), net.c(r)
    torch._foreach_add_([q, r], 1.0)
    d = net.d(q)
    e: Tensor = net.e(x)
    return b + c * 2 + d + q + r + e


@case(**SHIFTS)
def results_written_out(net: Any, x: Tensor) -> Tensor:
    room = torch.zeros_like(x)
    with torch.no_grad():
        a, b = net.a(x), net.b(x)
        c = net.c(room)
        torch.add(a, b, out=room)
        d = net.d(room)
        torch.mul(c, d, out=room)
    e: Tensor = net.e(x)
    return e + net.d(room) + room


@case(a=linear, b=linear, c=Shift, relu=lambda: nn.ReLU(inplace=True), d=linear)
def layers_that_write(net: Any, x: Tensor) -> Tensor:
    a, b = net.a(x), net.b(x)
    c = net.c(a)
    r = net.relu(a)
    s = net.relu(b)
    d: Tensor = net.d(x)
    return c + r * s + a + d


@case(
    inputs=lambda: {"x": noise(6, 8)},
    a=linear,
    norm=lambda: nn.BatchNorm1d(8),
    b=linear,
    c=linear,
    tolerance=ROUNDING,
)
def siamese_norm(net: Any, x: Tensor) -> Tensor:
    first = net.norm(net.a(x))
    second = net.norm(net.b(x + 1))
    third = net.norm(x * 3)
    last: Tensor = net.c(x)
    return first * 2 + second - third + last


@case(a=linear, b=linear, cell=lambda: nn.GRUCell(8, 8), c=linear, tolerance=ROUNDING)
def cell_loop(net: Any, x: Tensor) -> Tensor:
    hidden, states = net.a(x), []
    for number in range(4):
        hidden = net.cell(net.b(x + number), hidden)
        states.append(hidden)
    c: Tensor = net.c(x)
    return torch.stack(states).sum(0) + c
