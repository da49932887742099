"""What the host issues when, what it waits for, and how each device issues its own in backward."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from backend.virtual.machine.by_hand import (
    DEVICES,
    after,
    cluster_of,
    compute,
    host_s,
    on,
    row,
    rows,
    side,
    zeros,
)
from torch.utils.checkpoint import checkpoint

from baechi.backend.transfer import transfer


def test_a_kernel_waits_for_its_issue() -> None:
    """The host takes `launch_s` for each kernel, and none starts before it was issued."""
    with cluster_of(launch_s=10.0):
        x = zeros("cpu:0", 2)
        zeros("cpu:1", 15)
        x + 1
        assert host_s() == 30.0
        assert rows() == [
            ("zeros", "cpu:0", 10.0, 12.0),
            ("zeros", "cpu:1", 20.0, 35.0),
            ("add", "cpu:0", 30.0, 34.0),
        ]
        assert host_s() == 35.0  # whoever asks waits


def test_the_host_runs_ahead() -> None:
    """Issuing does not wait for what was issued before."""
    with cluster_of(launch_s=1.0):
        x = zeros("cpu:0", 100)
        x + 1
        assert host_s() == 2.0
        assert row("add") == ("add", "cpu:0", 101.0, 301.0)


def test_views_and_empty_tensors_cost_nothing() -> None:
    """Neither the host nor the device spends time on views, queries and allocations."""
    with cluster_of(launch_s=1.0):
        x = torch.empty(6, device="cpu:0")
        empty_like, new_empty = torch.empty_like(x), x.new_empty(3)
        views = x.view(2, 3).t(), x[1:3], x.split(2)[1], x.unsqueeze(0).expand(4, 6), x.detach()
        assert x.view(2, 3).shape == (2, 3) and empty_like.stride() == (1,) and len(new_empty) == 3
        assert x.to("cpu:0") is x
        assert len(views) == 5 and host_s() == 0.0 and rows() == []


SYNCS: dict[str, tuple[Callable[[torch.Tensor], Any], float]] = {
    "item": (lambda x: x[0].item(), 1.0),
    "bool": (lambda x: bool(x[0]), 1.0),
    "if": (lambda x: 1 if x[:1] else 2, 1.0),
    "int": (lambda x: int(x[0]), 1.0),
    "index": (lambda x: [0, 1][x[:1].to(torch.int32)], 3.0),  # converted first: reads 1, writes 1
    "equal": (lambda x: torch.equal(x, x), 8.0),
    "nonzero": (lambda x: x.nonzero(), 4.0),
    "mask": (lambda x: x[x > 0], 5.0 + 5.0),  # a mask of 4 is as large as a float; none is chosen
    "masked_select": (lambda x: x.masked_select(x > 0), 5.0 + 5.0),
    "cpu": (lambda x: x.cpu(), 4.0),
    "to": (lambda x: x.to("cpu"), 4.0),
    "tolist": (lambda x: x.tolist(), 4.0),
    "copy_": (lambda x: torch.empty(4).copy_(x), 4.0),
}


@pytest.mark.parametrize("name", SYNCS)
def test_the_host_waits_for_values(name: str) -> None:
    """Whoever needs a value, or a shape that depends on values, has waited for what makes it."""
    function, extra_s = SYNCS[name]
    with cluster_of():
        x = zeros("cpu:0", 4)
        x.add_(0)
        zeros("cpu:1", 100)  # nobody waits for this
        assert host_s() == 0.0
        function(x)
        assert host_s() == 4.0 + 8.0 + extra_s


def test_taking_by_numbers_does_not_hold_the_host() -> None:
    """Whole numbers say how much is taken; only how many a mask takes is for the device to say."""
    with cluster_of():
        x, numbers = zeros("cpu:0", 4), torch.zeros(2, dtype=torch.int64, device="cpu:0")
        assert x[numbers].shape == (2,) and host_s() == 0.0


def test_work_after_a_wait_starts_after_it() -> None:
    """What the host issues once it has waited cannot have started before, on no device."""
    with cluster_of():
        zeros("cpu:0", 4)[0].item()
        torch.ones(2, device="cpu:1")
        assert row("ones") == ("ones", "cpu:1", 5.0, 7.0)


def test_the_host_waits_for_the_current_stream_only() -> None:
    """A value that a side stream computes does not wait for the other streams of its device."""
    with cluster_of(launch_s=1.0), on(side("cpu:0")) as aside:
        x = zeros("cpu:0", 2)
        with on(compute("cpu:0")):
            torch.ones(50, device="cpu:0")  # issued at 2, engine free at 3
        x[0].item()  # ready at 3, the engine is free at 53
        assert host_s() == 54.0
        with on(compute("cpu:0")):
            torch.full((50,), 1.0, device="cpu:0")
        assert host_s() == 55.0
        after(compute("cpu:0"), aside)


def test_backward_issues_for_each_device_by_itself() -> None:
    """In backward each device has its own issuing clock, as it has a thread of its own in CUDA."""
    with cluster_of(launch_s=10.0):
        a, b = (zeros(place, requires_grad=True) for place in ("cpu:0", "cpu:1"))
        grads = zeros("cpu:0"), zeros("cpu:1")
        ends = a.exp().exp(), b.exp().exp()
        assert host_s() == 80.0
        torch.autograd.backward(ends, grads)
        zeros("cpu:0")
        assert host_s() == 110.0  # both went 2 x 10 on from 80, then one more
        backward = sorted(row for row in rows() if row[0] == "mul")
        assert backward == [
            ("mul", "cpu:0", 90.0, 93.0),
            ("mul", "cpu:0", 100.0, 103.0),
            ("mul", "cpu:1", 90.0, 93.0),
            ("mul", "cpu:1", 100.0, 103.0),
        ]


def test_backward_issues_when_the_gradient_was_issued() -> None:
    """A node is issued after what it reads was, though another device's thread did that."""
    with cluster_of(launch_s=10.0):
        a = zeros("cpu:0", requires_grad=True)
        b = transfer(a.exp(), DEVICES, "cpu:1").exp()
        b.backward(zeros("cpu:1"))
        zeros("cpu:0")
        assert [(name, start_s) for name, _, start_s, _ in rows()[5:]] == [
            ("mul", 60.0),  # issued for cpu:1 after zeros, exp, copy, exp, zeros
            ("copy", 70.0),
            ("mul", 80.0),  # by cpu:0's thread, which had nothing to do before
            ("zeros", 90.0),
        ]


def test_backward_of_a_plain_move_carries_the_gradient_back() -> None:
    """The gradient of `x.to` takes the way back, on the computing streams of both ends."""
    with cluster_of():
        x = zeros("cpu:0", 2, requires_grad=True)
        x.to("cpu:1").backward(zeros("cpu:1", 2))
        assert rows()[-1] == ("copy", "cpu:1>cpu:0", 6.0, 8.0)  # zeros 2, copy 2, zeros 2


def test_backwards_in_a_row_follow_each_other() -> None:
    """A second backward is issued after the first, also if nothing happens in between."""
    with cluster_of(launch_s=10.0):
        x, y = zeros("cpu:0", requires_grad=True), zeros("cpu:1", requires_grad=True)
        first, second = x.exp(), y.exp()
        grads = zeros("cpu:0"), zeros("cpu:1")
        first.backward(grads[0])
        second.backward(grads[1])
        zeros("cpu:1")
        assert [(name, where, start_s) for name, where, start_s, _ in rows()[6:]] == [
            ("mul", "cpu:0", 70.0),
            ("mul", "cpu:1", 80.0),
            ("zeros", "cpu:1", 90.0),
        ]


def test_a_wait_in_backward_holds_up_its_device_only() -> None:
    """A value needed in backward stops the issuing for its device, not for the others."""

    class Waits(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return grad * (1 + grad.item())

    with cluster_of(launch_s=1.0):
        a, b = zeros("cpu:0", requires_grad=True), zeros("cpu:1", requires_grad=True)
        torch.ones(50, device="cpu:0")
        ends = Waits.apply(a), b.exp()
        torch.autograd.backward(ends, (zeros("cpu:0"), zeros("cpu:1")))
        last = {(name, where): start_s for name, where, start_s, _ in rows()}
        assert last["_local_scalar_dense", "cpu:0"] == 56.0
        assert last["mul", "cpu:0"] == 58.0  # a launch after the value was there, at 57
        assert last["mul", "cpu:1"] == 8.0  # seven launches before; its own is the eighth


def test_backwards_in_a_row_hand_on_what_the_host_waited_for() -> None:
    """What the host waited for in the second of two backwards in a row is known after them."""
    held: list[torch.Tensor] = []

    class Waits(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: object, grad: torch.Tensor) -> torch.Tensor:
            held[0].item()
            return grad

    with cluster_of():
        x, y = zeros("cpu:0", requires_grad=True), zeros("cpu:0", requires_grad=True)
        first, second = x.exp(), Waits.apply(y)
        grad, seen = zeros("cpu:0"), zeros("cpu:0")
        held.append(seen)
        first.backward(grad)
        second.backward(grad)
        with on(side("cpu:0")) as aside:
            seen + 1
        after(compute("cpu:0"), aside)


def test_one_thread_issues_what_runs_again() -> None:
    """On whatever devices; then it goes on with the node for which the code ran again."""

    def region(x: torch.Tensor) -> torch.Tensor:
        with DEVICES.running_again():
            y = x.exp()
            zeros("cpu:1")  # reads nothing of what ran before
            return y.exp()

    with cluster_of(launch_s=10.0):
        x = zeros("cpu:0", requires_grad=True)
        out = checkpoint(region, x, use_reentrant=False)
        out.backward(zeros("cpu:0"))
        assert [(name, where, start_s) for name, where, start_s, _ in rows()[5:]] == [
            ("exp", "cpu:0", 60.0),
            ("zeros", "cpu:1", 70.0),
            ("exp", "cpu:0", 80.0),
            ("mul", "cpu:0", 90.0),
            ("mul", "cpu:0", 100.0),
        ]
