"""Blocks of memory that other streams use come back when these are past the use."""

import pytest
import torch
from backend.virtual.machine.by_hand import (
    DEVICES,
    FLOAT_BYTES,
    after,
    cluster_of,
    compute,
    copy,
    host_s,
    live,
    on,
    row,
    side,
    zeros,
)

import baechi
from baechi.cost.clock import Job
from baechi.errors import StreamRaceError


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
    looked: list[Job] = []

    def timed(task: Job) -> bool:
        looked.append(task)
        return task.waiters is None

    with cluster_of():
        for _ in range(sent):
            copy(zeros("cpu:0", 4), "cpu:1")
        assert live() == 4 * sent
        with monkeypatch.context() as patched:
            patched.setattr(Job, "timed", property(timed))
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
