"""Programs with a wait missing in backward, or before an optimizer."""

from typing import Any

import torch
from backend.virtual.machine.by_hand import DEVICES, after, compute, on, side, zeros
from backend.virtual.machine.races.sending import streams
from torch import nn

from baechi.backend.sends import wait_for_readers
from baechi.backend.transfer import transfer


class Careless(torch.autograd.Function):
    """A transfer whose gradient comes back with one of its two waits missing."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, waits: tuple[bool, bool]) -> torch.Tensor:
        ctx.waits = waits
        return transfer(x, DEVICES, "cpu:1")

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        (tx, rx), (for_producer, for_rx) = streams("cpu:1", "cpu:0"), ctx.waits
        if for_producer:
            after(tx, compute("cpu:1"))
        home = DEVICES.copy(grad, "cpu:0", (tx, rx))
        DEVICES.use(grad, tx)
        DEVICES.use(home, compute("cpu:0"))
        if for_rx:
            after(compute("cpu:0"), rx)
        return home, None


def gradient_sent_before_it_was_made(right: bool) -> None:
    x = zeros("cpu:0", 3, requires_grad=True)
    Careless.apply(x.exp(), (right, True)).exp().sum().backward()


def gradient_used_before_it_arrived(right: bool) -> None:
    x = zeros("cpu:0", 3, requires_grad=True)
    Careless.apply(x.exp(), (True, right)).exp().sum().backward()


def gradients_summed_before_one_arrived(right: bool) -> None:
    x = zeros("cpu:0", 3, requires_grad=True)
    y = Careless.apply(x, (True, right))
    torch.autograd.backward((x.exp(), y.exp()), (zeros("cpu:0", 3), zeros("cpu:1", 3)))


def optimizer_beside_the_gradients_transfer(right: bool, foreach: bool = False) -> None:
    weight = nn.Parameter(zeros("cpu:0", 3))
    weight.grad = transfer(zeros("cpu:1", 3), DEVICES, "cpu:0")
    with on(side("cpu:0")) as aside:
        if right:
            after(aside, compute("cpu:0"))
        DEVICES.use(weight.grad, aside)
        torch.optim.SGD([weight], 0.1, foreach=foreach).step()
    after(compute("cpu:0"), aside)


def optimizer_in_lists_beside_the_transfer(right: bool) -> None:
    optimizer_beside_the_gradients_transfer(right, foreach=True)


def optimizer_over_a_weight_in_flight(right: bool, foreach: bool = False) -> None:
    weight = nn.Parameter(zeros("cpu:0", 3))
    weight.grad = torch.ones_like(weight)
    transfer(weight.detach(), DEVICES, "cpu:1")
    if right:
        wait_for_readers(weight, DEVICES)
    torch.optim.SGD([weight], 0.1, foreach=foreach).step()


def optimizer_in_lists_over_a_weight_in_flight(right: bool) -> None:
    optimizer_over_a_weight_in_flight(right, foreach=True)
