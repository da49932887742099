"""When things run on an emulated cluster, to the second: a float takes one to be read, written or sent."""

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from backend.virtual.machine.by_hand import (
    DEVICES,
    after,
    cluster_of,
    compute,
    copy,
    emulator,
    host_s,
    on,
    row,
    rows,
    side,
    zeros,
)
from torch import nn

import baechi
from baechi.backend.flag import Flag
from baechi.backend.transfer import transfer
from baechi.backend.virtual.current import at_work
from baechi.records import Timeline

# --- streams and engines


def test_a_stream_runs_in_order() -> None:
    """Kernels of a stream follow each other without a gap, each as long as what it reads and writes."""
    with cluster_of():
        x = zeros("cpu:0", 3)
        y = x + 1
        y.mul_(x)
        assert rows() == [
            ("zeros", "cpu:0", 0.0, 3.0),
            ("add", "cpu:0", 3.0, 9.0),  # reads 3, writes 3
            ("mul_", "cpu:0", 9.0, 18.0),  # reads 3 and 3, writes 3
        ]


def test_arithmetic_bounds_a_kernel_that_moves_little() -> None:
    """A kernel lasts as long as its arithmetic or its bytes, whichever is more."""
    flops_per_s = {"float32": 1.0, "float64": 0.5}
    cluster = cluster_of(1)
    device = baechi.Device("cpu:0", kind="x", memory_bytes=10**6, flops_per_s=flops_per_s, bytes_per_s=4.0)
    with baechi.Cluster((device,), link=cluster.link, emulated=True, launch_s=0.0):
        x = zeros("cpu:0", 4).view(2, 2)
        torch.mm(x, x)
        x.double().mm(x.double())
        assert [(name, end_s - start_s) for name, _, start_s, end_s in rows()] == [
            ("zeros", 4.0),
            ("mm", 16.0),  # 2 x 2 x 2 x 2 operations; it moves 12 floats
            ("_to_copy", 12.0),
            ("_to_copy", 12.0),
            ("mm", 32.0),
        ]


def test_a_faster_device_takes_less() -> None:
    """A device's speed divides its times."""
    device = baechi.Device("cpu:0", memory_bytes=99, speed=2.0, flops_per_s={"float32": 1.0}, bytes_per_s=4.0)
    with baechi.Cluster((device,), emulated=True, launch_s=0.0):
        zeros("cpu:0", 3)
        assert row("zeros") == ("zeros", "cpu:0", 0.0, 1.5)


def test_streams_of_one_device_share_its_engine() -> None:
    """Two streams of a device do not compute at once; the one that is ready first is first."""
    with cluster_of(), on(side("cpu:0")):
        zeros("cpu:0", 4)
        with on(compute("cpu:0")):
            torch.ones(5, device="cpu:0")
        torch.full((2,), 7.0, device="cpu:0")
        assert rows() == [
            ("zeros", "cpu:0", 0.0, 4.0),
            ("ones", "cpu:0", 4.0, 9.0),
            ("full", "cpu:0", 9.0, 11.0),
        ]


def test_devices_compute_at_once() -> None:
    """Kernels on two devices overlap."""
    with cluster_of(2):
        zeros("cpu:0", 4)
        torch.ones(5, device="cpu:1")
        assert rows() == [("zeros", "cpu:0", 0.0, 4.0), ("ones", "cpu:1", 0.0, 5.0)]


def test_who_is_ready_first_computes_first() -> None:
    """A kernel that waits for another device does not hold up one that was issued after it."""
    with cluster_of(2):
        zeros("cpu:1", 6)
        with on(side("cpu:0")) as aside:
            after(aside, compute("cpu:1"))
            torch.ones(2, device="cpu:0")
        torch.full((4,), 7.0, device="cpu:0")
        torch.arange(3.0, device="cpu:0")
        after(compute("cpu:0"), aside)
        zeros("cpu:0", 1)
        assert [row for row in rows() if row[1] == "cpu:0"] == [
            ("full", "cpu:0", 0.0, 4.0),
            ("arange", "cpu:0", 4.0, 7.0),  # ready at 4: nothing else was
            ("ones", "cpu:0", 7.0, 9.0),
            ("zeros", "cpu:0", 9.0, 10.0),
        ]


# --- the host


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


def test_everything_is_timed() -> None:
    """A timeline holds what ran on any stream, also one that is not current any more."""
    with cluster_of():
        with on(side("cpu:0")) as aside:
            torch.ones(3, device="cpu:0")
        assert rows() == [("ones", "cpu:0", 0.0, 3.0)]
        assert host_s() == 3.0 and aside.epoch == 1


# --- events


def test_a_stream_waits_for_an_event() -> None:
    """What comes after an event starts after what was before it, and not after what came later."""
    with cluster_of():
        zeros("cpu:0", 5)
        event = DEVICES.record(compute("cpu:0"))
        torch.ones(20, device="cpu:0")
        torch.full((1,), 1.0, device="cpu:1")  # before the wait
        DEVICES.wait(compute("cpu:1"), event)
        torch.arange(2.0, device="cpu:1")
        zeros("cpu:1", 3)
        assert [row for row in rows() if row[1] == "cpu:1"] == [
            ("full", "cpu:1", 0.0, 1.0),
            ("arange", "cpu:1", 5.0, 7.0),
            ("zeros", "cpu:1", 7.0, 10.0),
        ]


def test_an_event_passes_on_what_its_stream_waits_for() -> None:
    """An event on a stream that waits, with nothing of its own, comes after what it waits for."""
    with cluster_of(3):
        zeros("cpu:0", 5)
        zeros("cpu:2", 7)
        after(compute("cpu:1"), compute("cpu:0"))
        after(compute("cpu:1"), compute("cpu:2"))
        aside = side("cpu:0")
        after(aside, compute("cpu:1"))
        with on(aside):
            torch.ones(1, device="cpu:0")
        after(compute("cpu:0"), aside)
        torch.full((1,), 1.0, device="cpu:0")
        assert row("ones") == ("ones", "cpu:0", 7.0, 8.0)
        assert row("full") == ("full", "cpu:0", 8.0, 9.0)


def test_an_event_of_an_idle_stream_has_happened() -> None:
    """An event on a stream without work holds nobody up."""
    with cluster_of():
        after(compute("cpu:1"), compute("cpu:0"))
        zeros("cpu:1", 2)
        assert row("zeros") == ("zeros", "cpu:1", 0.0, 2.0)


# --- transfers


def test_a_transfer_takes_what_its_link_says() -> None:
    """A transfer lasts latency and bytes; an empty one takes the latency."""
    with cluster_of(latency_s=0.5):
        x, y = zeros("cpu:0", 3), torch.empty(0, device="cpu:0")
        x.to("cpu:1")
        assert row("copy") == ("copy", "cpu:0>cpu:1", 3.0, 6.5)
        y.to("cpu:1")
        assert rows()[-1] == ("copy", "cpu:0>cpu:1", 6.5, 7.0)


def test_a_view_sends_its_own_bytes() -> None:
    """What travels is what a view shows, not the storage behind it."""
    with cluster_of():
        zeros("cpu:0", 10)[2:5].to("cpu:1")
        assert row("copy") == ("copy", "cpu:0>cpu:1", 10.0, 13.0)


def test_transfers_run_beside_compute() -> None:
    """On tx and rx a transfer overlaps what computes on both ends; only its reader waits for it."""
    with cluster_of():
        x = zeros("cpu:0", 3)
        y = transfer(x, DEVICES, "cpu:1")
        torch.ones(9, device="cpu:0")
        y + 1
        with on(side("cpu:1")) as aside:
            torch.full((5,), 1.0, device="cpu:1")
        after(compute("cpu:1"), aside)
        assert rows() == [
            ("zeros", "cpu:0", 0.0, 3.0),
            ("full", "cpu:1", 0.0, 5.0),
            ("copy", "cpu:0>cpu:1", 3.0, 6.0),
            ("ones", "cpu:0", 3.0, 12.0),
            ("add", "cpu:1", 6.0, 12.0),
        ]


def test_plain_to_holds_up_both_ends() -> None:
    """`x.to` runs on the computing streams: it comes after what they do, and they go on after it."""
    with cluster_of():
        x = zeros("cpu:0", 3)
        torch.ones(5, device="cpu:1")
        y = x.to("cpu:1")
        torch.full((1,), 1.0, device="cpu:0")
        y + 1
        assert rows() == [
            ("zeros", "cpu:0", 0.0, 3.0),
            ("ones", "cpu:1", 0.0, 5.0),
            ("copy", "cpu:0>cpu:1", 5.0, 8.0),
            ("full", "cpu:0", 8.0, 9.0),
            ("add", "cpu:1", 8.0, 14.0),
        ]


def test_copy_into_another_device_is_a_transfer() -> None:
    """`y.copy_(x)` from one device to another runs on both computing streams."""
    with cluster_of():
        x, y = zeros("cpu:0", 3), torch.empty(3, device="cpu:1")
        y.copy_(x)
        y + 1
        assert rows()[1:] == [("copy_", "cpu:0>cpu:1", 3.0, 6.0), ("add", "cpu:1", 6.0, 12.0)]


def test_the_host_issues_transfers() -> None:
    """A transfer costs the host one launch, and starts when it was issued."""
    with cluster_of(launch_s=10.0):
        copy(zeros("cpu:0", 3), "cpu:1")
        assert host_s() == 20.0
        assert row("copy") == ("copy", "cpu:0>cpu:1", 20.0, 23.0)


RECEPTIONS = {
    "serial": [("copy", "cpu:0>cpu:2", 4.0, 8.0), ("copy", "cpu:1>cpu:2", 8.0, 12.0)],
    "free": [("copy", "cpu:0>cpu:2", 4.0, 8.0), ("copy", "cpu:1>cpu:2", 4.0, 8.0)],
}


@pytest.mark.parametrize("reception", RECEPTIONS)
def test_reception(reception: str) -> None:
    """A device receives one transfer at a time if reception is serial, else one from each."""
    with cluster_of(3, reception=reception):
        x, y = zeros("cpu:0", 4), zeros("cpu:1", 4)
        received = [copy(tensor, "cpu:2") for tensor in (x, y)]
        assert [row for row in rows() if row[0] == "copy"] == RECEPTIONS[reception]
        assert len(received) == 2


@pytest.mark.parametrize("reception", RECEPTIONS)
def test_one_pair_sends_one_at_a_time(reception: str) -> None:
    """Two transfers over one link follow each other, also on other streams than tx and rx."""
    with cluster_of(2, reception=reception):
        x = zeros("cpu:0", 4)
        first = copy(x, "cpu:1")
        with on(side("cpu:0")) as tx, on(side("cpu:1")) as rx:
            after(tx, compute("cpu:0"))
            second = x.to("cpu:1")
        after(compute("cpu:0"), tx)
        after(compute("cpu:1"), rx)
        first + second
        assert rows()[1:] == [
            ("copy", "cpu:0>cpu:1", 4.0, 8.0),
            ("copy", "cpu:0>cpu:1", 8.0, 12.0),
            ("add", "cpu:1", 12.0, 24.0),
        ]


def test_a_device_sends_to_several_at_once() -> None:
    """Transfers from one device to two others overlap, and so do the two directions of a link."""
    with cluster_of(3):
        x, y = zeros("cpu:0", 4), zeros("cpu:1", 4)
        made = {place: DEVICES.record(compute(place)) for place in ("cpu:0", "cpu:1")}
        for tensor, source, target in ((x, "cpu:0", "cpu:1"), (x, "cpu:0", "cpu:2"), (y, "cpu:1", "cpu:0")):
            DEVICES.wait(DEVICES.transfer_streams(source, target)[0], made[source])
            copy(tensor, target, ordered=False)
        assert rows()[2:] == [
            ("copy", "cpu:0>cpu:1", 4.0, 8.0),
            ("copy", "cpu:0>cpu:2", 4.0, 8.0),
            ("copy", "cpu:1>cpu:0", 4.0, 8.0),
        ]


def test_who_is_ready_first_is_received_first() -> None:
    """Of two transfers to one device the one that can leave earlier does, in whatever order issued."""
    with cluster_of(3):
        x, y = zeros("cpu:0", 9), zeros("cpu:1", 4)
        received = [copy(tensor, "cpu:2") for tensor in (x, y)]
        assert [row for row in rows() if row[0] == "copy"] == [
            ("copy", "cpu:1>cpu:2", 4.0, 8.0),
            ("copy", "cpu:0>cpu:2", 9.0, 18.0),
        ]
        assert len(received) == 2


def test_uploads_do_not_hold_up_the_host() -> None:
    """A tensor of the host travels to a device while the host goes on; uploads queue there."""
    with cluster_of(launch_s=1.0, latency_s=0.5):
        x, y = torch.ones(4).to("cpu:0"), torch.ones(2).to("cpu:0")
        z = torch.ones(2).to("cpu:1")
        assert host_s() == 3.0
        x[:2] + y
        assert rows() == [
            ("copy", "host>cpu:0", 1.0, 5.5),
            ("copy", "host>cpu:1", 3.0, 5.5),
            ("copy", "host>cpu:0", 5.5, 8.0),
            ("add", "cpu:0", 8.0, 14.0),
        ]
        assert z.device == torch.device("cpu", 1)


def test_the_host_waits_for_downloads() -> None:
    """A download starts when its tensor is made, and the host goes on when it has arrived."""
    with cluster_of(launch_s=1.0, latency_s=0.5):
        zeros("cpu:0", 4).cpu()
        assert host_s() == 9.5
        zeros("cpu:1", 1)
        assert rows() == [
            ("zeros", "cpu:0", 1.0, 5.0),
            ("copy", "cpu:0>host", 5.0, 9.5),
            ("zeros", "cpu:1", 10.5, 11.5),
        ]


def test_made_on_the_host_and_brought() -> None:
    """`torch.tensor(device=)` is an upload; `torch.zeros(device=)` is made in place."""
    with cluster_of():
        torch.tensor([1.0, 2.0], device="cpu:1")
        zeros("cpu:1", 2)
        assert rows() == [("copy", "host>cpu:1", 0.0, 2.0), ("zeros", "cpu:1", 2.0, 4.0)]


# --- backward


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


# --- steps


def test_the_same_program_has_the_same_clocks() -> None:
    """Two runs of a program have identical timelines."""

    def run() -> Timeline:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        cluster = cluster_of(2, launch_s=0.1, latency_s=0.3)
        baechi.distribute(model, torch.ones(2, 3), cluster=cluster, device_map={"0": 1, "1": 0, "2": 1})
        with cluster:
            model(torch.ones(2, 3)).sum().backward()
            torch.optim.Adam(model.parameters()).step()
            return emulator().timeline(by_operator=True)

    assert run() == run()


@pytest.fixture(scope="module")
def trained() -> tuple[Timeline, Timeline]:
    """A step x -> [0 on cpu:0] -> [1 on cpu:0] -> [2 on cpu:1] with its optimizer's: by kernel, by layer."""
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 2, bias=False))
    cluster = cluster_of(2, launch_s=1.0)
    baechi.distribute(model, torch.ones(1, 2), cluster=cluster, device_map={"0": 0, "1": 0, "2": 1})
    with cluster:
        x = torch.ones(1, 2, device="cpu:1")  # from 1 to 3; the step begins at 1
        model(x).backward(torch.ones(1, 2, device="cpu:1"))
        torch.optim.SGD(model.parameters(), 0.1, foreach=False).step()
        return emulator().timeline(by_operator=True), baechi.last_step(model)


def test_a_step_has_layers_and_phases(trained: tuple[Timeline, Timeline]) -> None:
    """Spans name the layer, also in backward, and say whether they are of the model or around it."""
    spans = trained[0].spans
    assert [(span.layer, span.where, span.phase, span.start_s, span.end_s) for span in spans] == [
        ("copy", "cpu:1>cpu:0", "forward", 2.0, 4.0),
        ("0/mm", "cpu:0", "forward", 4.0, 12.0),  # 2 + 4 read, 2 written
        ("1/relu", "cpu:0", "forward", 12.0, 16.0),
        ("1/copy", "cpu:0>cpu:1", "forward", 16.0, 18.0),
        ("2/mm", "cpu:1", "forward", 18.0, 26.0),
        ("ones", "cpu:1", "other", 26.0, 28.0),
        ("2/mm", "cpu:1", "backward", 28.0, 36.0),
        ("2/mm", "cpu:1", "backward", 36.0, 44.0),
        ("2/copy", "cpu:1>cpu:0", "backward", 44.0, 46.0),
        ("1/threshold_backward", "cpu:0", "backward", 46.0, 52.0),
        ("add_", "cpu:1", "other", 46.0, 58.0),  # after the gradient has been read
        ("0/mm", "cpu:0", "backward", 52.0, 60.0),
        ("add_", "cpu:0", "other", 60.0, 72.0),
    ]


def test_a_stay_in_a_layer_is_one_span(trained: tuple[Timeline, Timeline]) -> None:
    """`last_step` shows layers, not kernels; what is around the model has no name."""
    assert [(s.layer, s.where, s.phase, s.start_s, s.end_s) for s in trained[1].spans] == [
        ("", "cpu:1>cpu:0", "forward", 2.0, 4.0),
        ("0", "cpu:0", "forward", 4.0, 12.0),
        ("1", "cpu:0", "forward", 12.0, 16.0),
        ("1", "cpu:0>cpu:1", "forward", 16.0, 18.0),
        ("2", "cpu:1", "forward", 18.0, 26.0),
        ("", "cpu:1", "other", 26.0, 28.0),
        ("2", "cpu:1", "backward", 28.0, 44.0),
        ("2", "cpu:1>cpu:0", "backward", 44.0, 46.0),
        ("1", "cpu:0", "backward", 46.0, 52.0),
        ("", "cpu:1", "other", 46.0, 58.0),
        ("0", "cpu:0", "backward", 52.0, 60.0),
        ("", "cpu:0", "other", 60.0, 72.0),
    ]


def test_a_step_adds_up(trained: tuple[Timeline, Timeline]) -> None:
    """The makespan is the forward and the backward window; what is around the model has no part in it."""
    for timeline in trained:
        assert timeline.makespan_s == (26.0 - 2.0) + (60.0 - 28.0)
        assert timeline.counters == {"kernels": 10, "transfers": 3, "transfer_bytes": 24}
        assert timeline.busy_s("cpu:0") == 38.0
        assert timeline.busy_s("cpu:0>cpu:1", "transfer") == 2.0


def test_each_call_begins_a_step() -> None:
    """A second call of a model is a step of its own, with clocks from its beginning, and the same."""
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 2, bias=False))
    cluster = cluster_of(2, launch_s=1.0)
    baechi.distribute(model, torch.ones(1, 2), cluster=cluster, device_map={"0": 0, "1": 0, "2": 1})
    with cluster, torch.no_grad():
        x = torch.ones(1, 2, device="cpu:1")
        emulator().synchronize()
        model(x)
        first = baechi.last_step(model)
        assert host_s() == 3.0 + 1.0 + 24.0  # x, a launch, and what follows from it
        model(x)
        second = baechi.last_step(model)
    assert (first.spans, first.makespan_s, first.counters) == (second.spans, 24.0, second.counters)


# --- threads of the host


class Threads:
    """Threads of an emulated host that say what they did, and when."""

    def __init__(self) -> None:
        self.said: list[tuple[str, float]] = []
        self.errors: list[BaseException] = []

    def say(self, what: str) -> None:
        self.said.append((what, host_s()))

    def start(self, position: int, function: Callable[[], None]) -> Flag:
        """Run a function in a thread; the flag is up when it is over."""
        over = DEVICES.flag()

        def run() -> None:
            try:
                function()
            except RuntimeError as error:
                self.errors.append(error)
            finally:
                over.set()

        DEVICES.spawn(run, position)
        return over


def test_threads_run_one_at_a_time_in_the_order_of_the_plan() -> None:
    """A new thread runs when the others wait; at one clock the first in the plan is the first."""
    threads = Threads()
    with cluster_of(launch_s=1.0):
        zeros("cpu:0")

        def work(name: str) -> None:
            threads.say(name)
            zeros("cpu:0")
            threads.say(name)

        overs = [threads.start(place, partial(work, f"thread {place}")) for place in (2, 0, 1)]
        threads.say("host")
        for over in overs:
            over.wait()
        threads.say("host")
    assert threads.said == [
        ("host", 1.0),
        ("thread 0", 1.0),
        ("thread 0", 2.0),
        ("thread 1", 1.0),
        ("thread 1", 2.0),
        ("thread 2", 1.0),
        ("thread 2", 2.0),
        ("host", 2.0),
    ]


def test_the_thread_with_the_earliest_clock_runs() -> None:
    """Of the threads that can go on, the one whose clock is behind goes first, whatever the plan says."""
    threads = Threads()
    with cluster_of(launch_s=1.0):
        up = DEVICES.flag()

        def work(name: str, kernels: int) -> None:
            for _ in range(kernels):
                zeros("cpu:0")
            threads.say(name)
            up.wait()
            threads.say(name)

        overs = [
            threads.start(0, partial(work, "late", 3)),
            threads.start(1, partial(work, "early", 1)),
            threads.start(2, lambda: (threads.say("sets"), up.set())[0]),
        ]
        for over in overs:
            over.wait()
    assert threads.said == [
        ("late", 3.0),
        ("early", 1.0),
        ("sets", 0.0),
        ("early", 1.0),  # now it is at 1, the other at 3
        ("late", 3.0),
    ]


def test_who_waited_is_no_earlier_than_who_set() -> None:
    """A waiter goes on at the clock at which the flag was set, and is not set back by one set long ago."""
    threads = Threads()
    with cluster_of():
        up = DEVICES.flag()

        def work() -> None:
            zeros("cpu:0", 9)[0].item()
            up.set()
            torch.ones(5, device="cpu:0").sum().item()
            threads.say("thread")

        over = threads.start(0, work)
        assert not up.is_set()
        up.wait()
        threads.say("host")
        over.wait()
        threads.say("host")
        assert up.is_set()
        up.wait()
        threads.say("host")
        torch.full((1,), 1.0, device="cpu:1")
        assert row("full") == ("full", "cpu:1", 22.0, 23.0)
    assert threads.said == [("thread", 22.0), ("host", 10.0), ("host", 22.0), ("host", 22.0)]


def test_who_waited_knows_what_the_setter_waited_for() -> None:
    """What a thread's host has seen to be over needs no event in the thread that waited for it."""
    threads = Threads()
    with cluster_of():
        x = zeros("cpu:0", 3)
        over = threads.start(0, lambda: x[0].item() and None)
        over.wait()
        with on(side("cpu:0")) as aside:
            x + 1
        after(compute("cpu:0"), aside)
        assert row("add") == ("add", "cpu:0", 4.0, 10.0)


def test_a_new_thread_knows_what_its_maker_waited_for() -> None:
    """A thread starts at its maker's clock, with what that has seen to be over."""
    threads = Threads()
    with cluster_of():
        x = zeros("cpu:0", 3)
        x[0].item()

        def work() -> None:
            threads.say("thread")
            with on(side("cpu:0")) as aside:
                x + 1
            after(compute("cpu:0"), aside)

        threads.start(0, work).wait()
    assert threads.said == [("thread", 4.0)] and threads.errors == []


def test_threads_that_wait_for_each_other_are_told() -> None:
    """If every thread waits, each of them raises, ends, and nobody hangs."""
    threads = Threads()
    before = set(threading.enumerate())
    with cluster_of():
        left, right = DEVICES.flag(), DEVICES.flag()
        threads.start(0, lambda: left.wait() and right.set())
        threads.start(1, lambda: right.wait() and left.set())
        with pytest.raises(RuntimeError, match="waits for another"):
            left.wait()
        for thread in set(threading.enumerate()) - before:
            thread.join()
    assert ["waits for another" in str(error) for error in threads.errors] == [True, True]
    assert at_work() is None


def test_a_flag_that_nobody_sets() -> None:
    """The only thread that there is cannot wait for itself."""
    with cluster_of():
        flag = DEVICES.flag()
        with pytest.raises(RuntimeError, match="nobody can go on"):
            flag.wait()
        assert not flag.is_set()


def test_threads_share_the_devices() -> None:
    """What two threads issue lands on the same streams, in the order in which they issued it."""
    threads = Threads()
    with cluster_of(launch_s=1.0):
        zeros("cpu:0", 10)
        over = threads.start(0, lambda: torch.ones(3, device="cpu:0").zero_() and None)
        over.wait()
        assert host_s() == 3.0
        zeros("cpu:0", 1)
        assert rows() == [
            ("zeros", "cpu:0", 1.0, 11.0),
            ("ones", "cpu:0", 11.0, 14.0),
            ("zero_", "cpu:0", 14.0, 20.0),
            ("zeros", "cpu:0", 20.0, 21.0),
        ]


def test_what_an_operator_makes_of_nothing() -> None:
    """Torch makes a causal mask and says of no device: whoever uses it runs its kernels."""
    with cluster_of():
        q, mask = zeros("cpu:1", 2).view(1, 1, 2, 1), torch.ones(2, 2, dtype=torch.bool).tril()
        torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True, dropout_p=0.5)
        names = [name for name, where, _, _ in rows() if where == "cpu:1"]
        assert names.count("tril") == names.count("where") == 1
        assert names.index("tril") < names.index("where") < names.index("add") < names.index("_safe_softmax")
        assert mask.device.type == "cpu" and not [n for n, where, _, _ in rows() if where == "cpu:0"]
