"""Once wrong: what driving the emulated cluster by hand found, each with its story."""

import threading

import pytest
import torch
from backend.virtual.machine.by_hand import DEVICES, after, cluster_of, compute, on, rows, side, zeros
from torch import nn

import baechi
from baechi.errors import StreamRaceError


def test_the_host_waits_for_a_stream_that_nobody_holds() -> None:
    """What ran on a stream that is gone is timed all the same."""
    with cluster_of():
        with on(side("cpu:0")):
            torch.ones(3, device="cpu:0")
        assert rows() == [("ones", "cpu:0", 0.0, 3.0)]


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


def test_who_is_ready_at_the_same_time_is_served_in_the_order_of_issue() -> None:
    """Of two kernels that get ready at once, the one that was issued first runs first."""
    with cluster_of(3):
        zeros("cpu:0", 10)
        zeros("cpu:1", 10)
        first, second = side("cpu:2", "first"), side("cpu:2", "second")
        after(first, compute("cpu:1"))
        after(second, compute("cpu:0"))
        with on(first):
            torch.ones(5, device="cpu:2")
        with on(second):
            torch.full((5,), 2.0, device="cpu:2")
        after(compute("cpu:2"), first)
        after(compute("cpu:2"), second)
        zeros("cpu:2", 1)
        own = [(row[0], row[2]) for row in rows() if row[1] == "cpu:2"]
    assert own == [("ones", 10.0), ("full", 15.0), ("zeros", 20.0)]


def test_tensors_from_before_are_there_for_every_stream() -> None:
    """A tensor that lay on a device before may be read on any stream, whatever ran there since."""
    before = DEVICES.copy(torch.ones(2), "cpu:0", (None, None))
    with cluster_of():
        zeros("cpu:0")
        with on(side("cpu:0")) as aside:
            before + 1
        after(compute("cpu:0"), aside)


def test_a_said_use_vouches_for_what_its_stream_waited_for() -> None:
    """A block may come back after a use that was said, if that comes after the uses that were not."""
    with cluster_of():
        x = zeros("cpu:0")
        early, late = side("cpu:0", "early"), side("cpu:0", "late")
        after(early, compute("cpu:0"))
        with on(early):
            x + 1
        after(late, early)
        with on(late):
            x + 1
        DEVICES.use(x, late)
        del x
        zeros("cpu:0")


def test_a_transfer_is_over_on_both_ends_at_once() -> None:
    """An event recorded on tx after a transfer tells that the copy is there, as one on rx does."""
    with cluster_of():
        x, (tx, rx) = zeros("cpu:0", 3), DEVICES.transfer_streams("cpu:0", "cpu:1")
        after(tx, compute("cpu:0"))
        y = DEVICES.copy(x, "cpu:1", (tx, rx))
        DEVICES.use(x, tx)
        DEVICES.use(y, compute("cpu:1"))
        after(compute("cpu:1"), tx)
        y.exp()


def test_growing_a_tensor_that_is_read_is_a_race() -> None:
    """`resize_` gives back the memory that it grows out of, which a transfer may still read."""
    with pytest.raises(StreamRaceError), cluster_of():
        x, (tx, rx) = zeros("cpu:0", 3), DEVICES.transfer_streams("cpu:0", "cpu:1")
        after(tx, compute("cpu:0"))
        DEVICES.copy(x, "cpu:1", (tx, rx))
        x.resize_(99)
        after(compute("cpu:0"), tx)


def test_downloads_count_in_the_forward_window() -> None:
    """The copy of a model's output to the host is part of its forward, as the copy of its input is."""
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    cluster = cluster_of(2)
    baechi.distribute(model, torch.ones(1, 2), cluster=cluster, device_map={"0": 0, "1": 1})
    with cluster, torch.no_grad():
        model(torch.ones(1, 2))
        phases = {span.where: span.phase for span in baechi.last_step(model).spans}
    assert phases["host>cpu:0"] == "forward"
    assert phases["cpu:1>host"] == "forward"


def test_threads_run_before_the_emulation_ends() -> None:
    """A thread that nobody waits for runs all the same, and does not hang for ever."""
    ran = threading.Event()
    with cluster_of():
        DEVICES.flag()
        DEVICES.spawn(ran.set, 0)
    assert ran.is_set()
