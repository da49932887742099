"""After an operation without room all is as it was, and goes on."""

import pytest
import torch
from backend.virtual.machine.by_hand import DEVICES, FLOAT_BYTES, cluster_of, emulator, live, peak, zeros
from torch import nn

import baechi
from baechi.backend.transfer import transfer


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
