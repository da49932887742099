"""How full emulated devices are, to the byte, as CUDA's caching allocator would have it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from backend.virtual.machine.by_hand import (
    DEVICES,
    FLOAT_BYTES,
    after,
    cluster_of,
    compute,
    copy,
    emulator,
    host_s,
    on,
    row,
    side,
    zeros,
)
from torch import nn

import baechi
from baechi.backend.transfer import transfer
from baechi.backend.virtual.devices import VirtualDevices
from baechi.backend.virtual.machine.clock import Task
from baechi.errors import StreamRaceError


def live(place: str = "cpu:0") -> int:
    """Floats that lie on a device now."""
    floats, rest = divmod(emulator().allocator.live_bytes[place], FLOAT_BYTES)
    assert not rest
    return floats


def peak(place: str = "cpu:0") -> int:
    """The most floats that ever lay on a device."""
    return emulator().allocator.peak_bytes[place] // FLOAT_BYTES


# --- the exact byte


def make() -> Any:
    return zeros("cpu:0", 5)


def make_empty() -> Any:
    return torch.empty(5, device="cpu:0")


def compute_two() -> Any:
    x = zeros("cpu:0", 2)
    return x, x + 1


def upload() -> Any:
    return torch.ones(5).to("cpu:0")


def upload_constant() -> Any:
    return torch.tensor([1.0, 2.0], device="cpu:0")


def receive() -> Any:
    return zeros("cpu:1", 5).to("cpu:0")


def receive_beside() -> Any:
    return transfer(zeros("cpu:1", 5), DEVICES, "cpu:0")


def receive_view() -> Any:
    return zeros("cpu:1", 9)[2:5].to("cpu:0")


def several_results() -> Any:
    return zeros("cpu:0", 6).view(2, 3).max(dim=1)


def cast() -> Any:
    return zeros("cpu:0", 3).double()


def resize() -> Any:
    return torch.empty(2, device="cpu:0").resize_(7)


def resize_storage_twice() -> Any:
    return torch.empty(2, device="cpu:0").resize_(7).resize_(3).resize_(8)


def differentiate() -> Any:
    x = zeros("cpu:0", 3, requires_grad=True)
    x.exp().backward(zeros("cpu:0", 3))
    return x


def differentiate_over_devices() -> Any:
    x = zeros("cpu:0", 3, requires_grad=True)
    transfer(x.exp(), DEVICES, "cpu:1").backward(zeros("cpu:1", 3))
    return x


def optimize_in_lists() -> Any:
    weights = [nn.Parameter(zeros(place, 3)) for place in ("cpu:0", "cpu:1")]
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    torch.optim.SGD(weights, 0.1, momentum=0.9, foreach=True).step()
    return weights


def in_place() -> Any:
    return zeros("cpu:0", 4).add_(1).mul_(2).zero_()


def from_before() -> Any:
    return BEFORE + 1


BEFORE = DEVICES.copy(torch.ones(3), "cpu:0", (None, None))

NEEDS: dict[Callable[[], Any], int] = {
    make: 5,
    make_empty: 5,
    compute_two: 4,
    upload: 5,
    upload_constant: 2,
    receive: 5,
    receive_beside: 5,
    receive_view: 3 + 2,  # and what aligns the copy as the view is aligned
    several_results: 6 + 2 + 4,  # the places are int64
    cast: 3 + 6,
    resize: 7,
    resize_storage_twice: 8,
    differentiate: 12,  # x, its exponential, the gradient of that, the gradient of x
    differentiate_over_devices: 12,  # x, its exponential, the copy of its gradient, that of x
    optimize_in_lists: 9,
    in_place: 4,
    from_before: 6,
}


@pytest.mark.parametrize("program", NEEDS, ids=lambda program: program.__name__)
def test_memory_ends_at_the_exact_byte(program: Callable[[], Any]) -> None:
    """A device of the size that a program needs has room for it, one that is a byte smaller has none."""
    enough = NEEDS[program] * FLOAT_BYTES
    with cluster_of(memory_bytes=10**4):
        kept = program()
        assert emulator().allocator.peak_bytes["cpu:0"] == enough
        del kept
    for memory_bytes, fits in ((enough, True), (enough - 1, False)):
        with cluster_of(2, memory_bytes=10**4) as ample:
            cluster = ample.with_memory({0: memory_bytes})
        with cluster:
            if fits:
                program()
                continue
            with pytest.raises(torch.OutOfMemoryError, match="cpu:0 is out of memory"):
                program()


def test_the_error_says_what_is_missing() -> None:
    """The error names device, operator and layer, and all figures, as attributes too."""
    with cluster_of(memory_bytes=100):
        held = zeros("cpu:1", 15)
        DEVICES.enter_layer("head#1")
        with pytest.raises(baechi.DeviceMemoryError) as caught:
            held + 1
    error = caught.value
    assert isinstance(error, torch.OutOfMemoryError) and isinstance(error, baechi.BaechiError)
    assert (error.device, error.needed_bytes, error.live_bytes, error.memory_bytes) == ("cpu:1", 60, 60, 100)
    for word in ("cpu:1", "add of layer head#1", "60 of 100", "20 are missing"):
        assert word in str(error)


def test_devices_have_memory_of_their_own() -> None:
    """What lies on one device takes nothing from the others, and nothing is counted for the host."""
    with cluster_of(memory_bytes=12):
        held = zeros("cpu:0", 3), zeros("cpu:1", 3), torch.zeros(100)
        assert (live("cpu:0"), live("cpu:1"), len(held)) == (3, 3, 3)


# --- free


def test_memory_comes_back_when_nobody_holds_it() -> None:
    """A tensor's memory is free as soon as nobody holds it, though the host is far ahead."""
    with cluster_of(memory_bytes=5 * FLOAT_BYTES):
        for _ in range(3):
            x = zeros("cpu:0", 5)
            assert live() == 5
            del x
            assert live() == 0
        assert (peak(), host_s()) == (5, 0.0)


def test_a_view_holds_all_and_takes_nothing() -> None:
    """Views need no memory, and the last of them holds all of it."""
    with cluster_of():
        x = zeros("cpu:0", 6)
        first, *_ = x.view(2, 3), x[1:], x.detach(), x.t()
        row_of_it = x.view(2, 3)[0]
        assert live() == 6
        del x, first, _
        assert live() == 6
        del row_of_it
        assert live() == 0


def test_several_results_come_back_one_by_one() -> None:
    """Each result of an operator has memory of its own."""
    with cluster_of():
        values, places = zeros("cpu:0", 6).view(2, 3).max(dim=1)
        assert live() == 2 + 4
        del values
        assert live() == 4
        del places
        assert live() == 0


def test_autograd_holds_what_it_saves() -> None:
    """What backward needs is held until backward has run."""
    with cluster_of():
        x = zeros("cpu:0", 3, requires_grad=True)
        y = x.exp().exp()
        assert live() == 9
        y.backward(zeros("cpu:0", 3))
        assert live() == 3 + 3 + 3  # x, y, the gradient of x
        del y
        assert live() == 6


def test_resize_counts_the_storage() -> None:
    """Growing takes more; what is given up stays with the storage, as on real devices."""
    with cluster_of():
        x = torch.empty(4, device="cpu:0")
        x.resize_(9)
        assert live() == 9
        x.resize_(2)
        assert live() == 9
        x.resize_(9)
        assert (live(), peak()) == (9, 9)
        del x
        assert live() == 0


def test_peaks() -> None:
    """The peak is the most there was at once, by the order of issue, on each device."""
    with cluster_of():
        x = zeros("cpu:0", 4)
        y = x + 1
        del x
        y.add_(1)
        z = y.to("cpu:1")
        assert (live("cpu:0"), peak("cpu:0"), live("cpu:1"), peak("cpu:1")) == (4, 8, 4, 4)
        z = z + 1
        assert (live("cpu:1"), peak("cpu:1")) == (4, 8)
        emulator().allocator.restart_peaks()
        assert (peak("cpu:0"), peak("cpu:1")) == (4, 4)


def test_what_dies_later_is_nobodys_business() -> None:
    """Tensors may outlive the cluster, and live in the next one again."""
    with cluster_of():
        x = zeros("cpu:0", 4)
    del x
    with cluster_of():
        y = zeros("cpu:0", 3)
    with cluster_of():
        assert live() == 0
        y.add_(1)
        assert live() == 3
        del y
        assert live() == 0


# --- uses on other streams


def test_a_said_use_is_waited_for() -> None:
    """A block that another stream uses comes back when the host's clock has passed that use."""
    with cluster_of():
        x = zeros("cpu:0", 4)  # until 4
        y = copy(x, "cpu:1")  # until 8
        del x
        assert live() == 4
        zeros("cpu:0", 1)[0].item()  # from 4 until 6: the host is there, the transfer is not over
        assert (host_s(), live()) == (6.0, 4)
        zeros("cpu:0", 1)[0].item()
        assert (host_s(), live()) == (8.0, 0)
        assert y.shape == (4,)


def test_a_use_of_the_own_stream_needs_no_waiting() -> None:
    """Saying that the stream that allocated a block uses it changes nothing."""
    with cluster_of():
        x = zeros("cpu:0", 4)
        DEVICES.use(x, compute("cpu:0"))
        del x
        assert live() == 0


def test_what_comes_after_the_use_needs_no_waiting() -> None:
    """A block whose other uses are ordered before its own stream is free at once."""
    with cluster_of():
        x = zeros("cpu:0", 4)
        with on(side("cpu:0")) as aside:
            after(aside, compute("cpu:0"))
            x + 1
        after(compute("cpu:0"), aside)
        del x
        assert live() == 0 and host_s() == 0.0


def test_every_said_use_is_waited_for() -> None:
    """A block that several streams use comes back after the last of them."""
    with cluster_of(3):
        x = zeros("cpu:0", 4)
        copies = [copy(x, place) for place in ("cpu:1", "cpu:2")]  # until 8
        copies.append(copy(copies[0], "cpu:2"))
        slow = side("cpu:0", "slow")
        after(slow, compute("cpu:0"))
        with on(slow):
            x + 1  # from 4 until 12
        DEVICES.use(x, slow)
        del x
        zeros("cpu:1", 2)[0].item()  # cpu:1 has the copy at 8, and is done at 11
        assert (host_s(), live()) == (11.0, 4)
        zeros("cpu:1", 2)[0].item()
        assert (host_s(), live()) == (14.0, 0)
        after(compute("cpu:0"), slow)


@pytest.mark.parametrize("sent", [10, 100])
def test_many_blocks_that_wait_cost_no_more_than_one(sent: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks come back in the order of their streams, so that only the first of them is looked at."""
    looked: list[Task] = []

    def timed(task: Task) -> bool:
        looked.append(task)
        return task.waiters is None

    with cluster_of():
        for _ in range(sent):
            copy(zeros("cpu:0", 4), "cpu:1")
        assert live() == 4 * sent
        with monkeypatch.context() as patched:
            patched.setattr(Task, "timed", property(timed))
            x = zeros("cpu:0", 1)
        assert len(looked) == 2  # for either device
        zeros("cpu:0", 1)[0].item()
        (x + copy(zeros("cpu:1"), "cpu:0")).item()  # after all transfers
        assert live() == 1


def test_the_copy_is_held_on_the_other_end() -> None:
    """A received copy belongs to rx, so it comes back when what computes is past its use."""
    with cluster_of():
        y = copy(zeros("cpu:0", 4), "cpu:1")  # until 8
        z = y.sum()  # from 8 until 13: reads 4, writes 1
        del y
        assert (live("cpu:1"), host_s()) == (5, 0.0)
        z.item()
        assert (live("cpu:1"), host_s()) == (1, 14.0)


def test_the_host_waits_for_uses_before_it_gives_up() -> None:
    """Before a device is called full the host waits until the blocks are back that others use."""
    with cluster_of(memory_bytes=5 * FLOAT_BYTES):
        x = zeros("cpu:0", 4)
        copy(x, "cpu:1")
        del x
        assert host_s() == 0.0
        zeros("cpu:0", 1)
        assert host_s() == 0.0  # there was room
        torch.ones(2, device="cpu:0")
        assert host_s() == 8.0  # there was none until the transfer was over
        assert row("ones") == ("ones", "cpu:0", 8.0, 10.0)


def test_the_host_waits_only_where_it_is_full() -> None:
    """Blocks of another device are not waited for."""
    with cluster_of(memory_bytes=5 * FLOAT_BYTES):
        x = zeros("cpu:0", 4)
        copy(x, "cpu:1")  # the copy is freed at once, and pending on cpu:1
        del x
        with on(side("cpu:1")) as slow:
            held = torch.empty(1, device="cpu:1")
            slow_s = [held.add_(1) for _ in range(20)]  # until 40
        DEVICES.use(held, slow)
        zeros("cpu:0", 5)
        assert host_s() == 8.0 and len(slow_s) == 20
        after(compute("cpu:1"), slow)


def test_full_all_the_same() -> None:
    """If waiting does not help, the error comes, with what is live once all pending blocks are back."""
    with cluster_of(memory_bytes=9 * FLOAT_BYTES):
        kept, x = zeros("cpu:0", 3), zeros("cpu:0", 4)  # until 7
        copy(x, "cpu:1")
        del x
        with pytest.raises(baechi.DeviceMemoryError) as caught:
            zeros("cpu:0", 7)
        assert (caught.value.live_bytes, caught.value.needed_bytes) == (12, 28)
        assert (host_s(), live()) == (11.0, 3)
        assert kept.shape == (3,)


def test_backward_waits_for_uses_too() -> None:
    """In backward the thread of the device that is full waits."""
    with cluster_of(memory_bytes=12 * FLOAT_BYTES):
        x = zeros("cpu:0", 3, requires_grad=True)  # until 3
        y = x.exp()  # until 9
        grad = zeros("cpu:0", 3)  # until 12
        other = zeros("cpu:0", 3)  # until 15
        copy(other, "cpu:1")  # until 18
        del other
        y.backward(grad)
        assert live() == 12
        assert row("mul")[2:] == (18.0, 27.0)


# --- after an error


def test_after_an_error_all_goes_on() -> None:
    """An operation without room leaves nothing behind, and there is room again once something is freed."""
    with cluster_of(memory_bytes=8 * FLOAT_BYTES):
        x, y = zeros("cpu:0", 4), zeros("cpu:0", 2)
        with pytest.raises(baechi.DeviceMemoryError):
            x + 1
        assert (live(), peak()) == (6, 6)
        y = y * 2
        assert (live(), peak()) == (6, 8)
        del y
        assert torch.equal((x + 1).cpu(), torch.ones(4))


def test_an_operator_has_room_for_all_its_results_or_none() -> None:
    """If the second result does not fit, the first is not counted either."""
    with cluster_of(memory_bytes=9 * FLOAT_BYTES):
        x = zeros("cpu:0", 6).view(2, 3)
        with pytest.raises(baechi.DeviceMemoryError) as caught:
            x.max(dim=1)  # 2 floats and 2 int64
        assert (caught.value.needed_bytes, live(), peak()) == (24, 6, 6)


def test_a_transfer_without_room_leaves_nothing() -> None:
    """A copy that does not fit is not there, takes no link, and the source is as it was."""
    with cluster_of(memory_bytes=8 * FLOAT_BYTES):
        x, held = zeros("cpu:0", 4), zeros("cpu:1", 5)
        for move in (lambda: x.to("cpu:1"), lambda: transfer(x, DEVICES, "cpu:1")):
            with pytest.raises(baechi.DeviceMemoryError):
                move()
        assert (live("cpu:0"), live("cpu:1")) == (4, 5)
        assert emulator().timeline().counters["transfers"] == 0
        del held
        assert torch.equal(x.to("cpu:1").cpu(), torch.zeros(4))


def test_a_storage_that_could_not_grow_is_counted_as_it_was() -> None:
    """`resize_` without room leaves the count alone, and can be tried again."""
    with cluster_of(memory_bytes=8 * FLOAT_BYTES):
        x, held = torch.empty(2, device="cpu:0"), torch.empty(3, device="cpu:0")
        for _ in range(2):
            with pytest.raises(baechi.DeviceMemoryError) as caught:
                x.resize_(7)
            assert (caught.value.needed_bytes, live()) == (20, 5)
        del held
        x.resize_(7)
        assert live() == 7


def test_memory_is_whole_again_after_a_step_without_room() -> None:
    """A step that fails in the middle gives back what it had made; a smaller one runs."""
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Tanh(), nn.Linear(2, 2, bias=False))
    cluster = cluster_of(memory_bytes=200)
    baechi.distribute(model, torch.ones(1, 2), cluster=cluster, device_map={"0": 0, "1": 0, "2": 1})
    with cluster:
        model(torch.ones(1, 2)).sum().backward()
        model.zero_grad()
        emulator().synchronize()
        before = live("cpu:0"), live("cpu:1")
        with pytest.raises(torch.OutOfMemoryError):
            model(torch.ones(20, 2))
        emulator().synchronize()
        assert (live("cpu:0"), live("cpu:1")) == before == (4, 4)
        model(torch.ones(1, 2)).sum().backward()


# --- what was there before


def test_weights_count_when_their_step_begins() -> None:
    """The weights of a distributed model are counted as its first step begins, all of them, once."""
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4), nn.Linear(4, 2, bias=False))
    cluster = cluster_of(2)
    baechi.distribute(model, torch.ones(1, 2), cluster=cluster, device_map={"0": 0, "1": 1, "2": 1})
    with cluster, torch.no_grad():
        assert (live("cpu:0"), live("cpu:1")) == (0, 0)
        seen: list[tuple[int, int]] = []
        model[0].register_forward_pre_hook(lambda *_: seen.append((live("cpu:0"), live("cpu:1"))))
        model(torch.ones(1, 2))
        assert seen == [(9, 16 + 8)]
        model(torch.ones(1, 2))
        assert (live("cpu:0"), live("cpu:1")) == (9, 24)


def test_a_model_that_does_not_fit_is_refused_as_its_step_begins() -> None:
    """Weights of 9 floats do not fit where there is room for 8."""
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4))
    cluster = cluster_of(2, memory_bytes=10**4)
    baechi.distribute(model, torch.ones(1, 2), cluster=cluster, device_map={"0": 0, "1": 1})
    small = cluster.with_memory({0: 8 * FLOAT_BYTES})
    with small, pytest.raises(baechi.DeviceMemoryError) as caught:
        model(torch.ones(1, 2))
    assert caught.value.device == "cpu:0"


def test_tied_weights_count_once() -> None:
    """Two tensors of one storage are one block."""
    weight = torch.ones(6)
    both = [weight, weight.view(2, 3)]
    VirtualDevices(("cpu:0",)).move_weights(both, "cpu:0")
    with cluster_of():
        DEVICES.count(both)
        DEVICES.count(both)
        assert live() == 6


def test_an_unsaid_use_is_an_early_free() -> None:
    """Memory that may still be read by another stream is not handed on in silence."""
    with pytest.raises(
        StreamRaceError, match="freed for stream cpu:0/compute while add on stream cpu:0/side"
    ):
        with cluster_of():
            x = zeros("cpu:0", 4)
            with on(side("cpu:0")) as aside:
                after(aside, compute("cpu:0"))
                x + 1
            del x
