"""Models whose code looks at values."""

from typing import Any

import torch
from run.launch.reordering.case import LINEARS, case
from torch import Tensor, nn
from torch.nn import functional as F


@case(**LINEARS)
def control_flow(net: Any, x: Tensor) -> Tensor:
    a, b = net.a(x), net.b(x)
    if a.sum() > b.sum():
        a = net.c(a)
    else:
        b = net.c(b)
    net.notes += [a.mean().item(), b[0].tolist(), int(a.argmax()), bool((b > 0).any()), float(b[0, 0])]
    d: Tensor = net.d(x)
    return a + b + d + net.e(x)


@case(**LINEARS)
def printed(net: Any, x: Tensor) -> Tensor:
    a, b = net.a(x).detach(), net.b(x)
    net.notes += [str(a), f"{b.sum().detach():.3f}", repr(a[0])]
    d: Tensor = net.d(x)
    return a + b + d + net.e(x)


@case(**LINEARS)
def questions(net: Any, x: Tensor) -> Tensor:
    a, b = net.a(x), net.b(x)[:, 2:]
    net.notes += [a.shape, len(a), a.dtype, a.dim(), a.size(1), a.numel(), a.stride(), a.is_contiguous()]
    net.notes += [b.shape, b.stride(), b.is_contiguous(), b.storage_offset(), b.requires_grad, a.is_leaf]
    net.notes += [isinstance(a, Tensor), torch.is_tensor(a), isinstance(a, nn.Parameter), a.ndim, a.layout]
    net.notes += [a.grad_fn is None, a.is_floating_point(), a.element_size(), a is b, a in [a]]
    net.notes += [a.new_zeros(2).tolist(), a.grad, a.device.type, torch.numel(a), a.data.shape]
    c = torch.zeros(a.shape, device=a.device, dtype=a.dtype) + torch.ones_like(a)
    d: Tensor = net.d(x)
    return a + net.c(c) + d + F.pad(b, (1, 1))


@case(**LINEARS)
def as_numpy(net: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        a, b = net.a(x), net.b(x)
        net.notes.append(a.cpu().numpy().tolist())
        c = torch.from_numpy(b.cpu().numpy() * 2).to(b.device)
    d: Tensor = net.d(x)
    return d + net.e(x + c)


@case(**LINEARS)
def shapes_that_depend_on_values(net: Any, x: Tensor) -> Tensor:
    a, b = net.a(x), net.b(x)
    positive = a[b > 0]
    rows = (b > 0).nonzero()
    net.notes += [positive.shape, rows.tolist(), torch.unique(b > 0).tolist()]
    c = torch.zeros_like(a).masked_scatter(b > 0, positive)
    c = c.index_add(0, rows[:1, 0], a[:1])
    d: Tensor = net.d(x)
    return net.c(c) + d + net.e(x)


@case(**LINEARS)
def iterated(net: Any, x: Tensor) -> Tensor:
    a, b = net.a(x), net.b(x)
    rows = [row * number for number, row in enumerate(a)]
    first, second, third = b
    left, right = a.chunk(2, dim=1)
    d: Tensor = net.d(x)
    return torch.stack(rows) + first + second * third + d + torch.cat([right, left], 1)
