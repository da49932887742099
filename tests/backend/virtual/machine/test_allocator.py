"""How full emulated devices are, to the byte, as CUDA's caching allocator would have it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from backend.virtual.machine.by_hand import (
    DEVICES,
    FLOAT_BYTES,
    cluster_of,
    emulator,
    host_s,
    live,
    peak,
    zeros,
)
from torch import nn

import baechi
from baechi.backend.transfer import transfer
from baechi.backend.virtual.devices import VirtualDevices


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
        x.untyped_storage().resize_(2 * FLOAT_BYTES)  # by hand, as sharded weights do
        assert x.resize_(2).shape == (2,) and live() == 2
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
        small = zeros("cpu:0", 1)  # less than what came back
        assert (live("cpu:0"), peak("cpu:0")) == (5, 8)
        del small
        emulator().allocator.restart_peaks()
        assert (peak("cpu:0"), peak("cpu:1")) == (4, 4)


def test_what_dies_later_is_nobodys_business() -> None:
    """Tensors may outlive the cluster, whose books are closed, and live in the next one again."""
    with cluster_of():
        x, books = zeros("cpu:0", 4), emulator().allocator
    del x
    assert books.live_bytes["cpu:0"] == 4 * FLOAT_BYTES
    with cluster_of():
        y = zeros("cpu:0", 3)
    with cluster_of():
        assert live() == 0
        y.add_(1)
        assert live() == 3
        del y
        assert live() == 0


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
