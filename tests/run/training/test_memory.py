"""What does not fit on an emulated device raises there, with the bytes; what is planned to fit does."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
import torch
from architectures import HELD_IN
from architectures.of_zoo import our_own
from matrix import in_turn
from same import identical
from torch import nn

import baechi
from baechi.run.dry.loop import losses_of

WEIGHT_BYTES = 64 * 64 * 4
BATCH_BYTES = 16 * 64 * 4
MEMORY_BYTES = 150_000


class Stack(nn.Module):
    """Four layers: 65,536 bytes of weights, as many of gradients, and twice as many of Adam's state."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*[nn.Linear(64, 64, bias=False) for _ in range(4)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(x)
        return out


def stack() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Stack()


def batch() -> torch.Tensor:
    return torch.randn(16, 64, generator=torch.Generator().manual_seed(1))


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.01)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, device: str = "cpu") -> None:
    """One step."""
    optimizer.zero_grad()
    loss = model(batch().to(device)).pow(2).mean()
    loss.backward()
    optimizer.step()


def small(n: int) -> baechi.Cluster:
    return baechi.Cluster.virtual(n, memory=MEMORY_BYTES)


def test_training_by_hand_runs_out_of_memory() -> None:
    """A model that fits, gradients and all, runs out where Adam makes its state; the error has the bytes."""
    model = stack()
    with small(1):
        model.to("cpu:0")
        optimizer = adam(model)
        with pytest.raises(baechi.DeviceMemoryError, match=r"16,384 bytes, 147,460 of 150,000") as caught:
            train(model, optimizer, "cpu:0")
    error = caught.value
    # weights and gradients of four layers, the first moment of one, and the loss
    assert (error.device, error.memory_bytes) == ("cpu:0", MEMORY_BYTES)
    assert error.live_bytes == 4 * WEIGHT_BYTES + 4 * WEIGHT_BYTES + WEIGHT_BYTES + 4
    assert error.needed_bytes == WEIGHT_BYTES
    assert "13,844 are missing" in str(error)


def test_moving_by_hand_runs_out_of_memory() -> None:
    """A model whose weights alone do not fit raises when it is moved."""
    model = stack()
    message = r"16,384 bytes, 49,152 of 49,152 \(of A100-80GB\) are in use"
    with baechi.Cluster.virtual(1, memory=3 * WEIGHT_BYTES):
        with pytest.raises(baechi.DeviceMemoryError, match=message):
            model.to("cpu:0")


NEEDED_BYTES = 4 * 4 * WEIGHT_BYTES + 4 * WEIGHT_BYTES
"""Weights, gradients and two moments, and while Adam steps for all at once, one more of each."""

HALF_BYTES = 2 * 4 * WEIGHT_BYTES + 3 * WEIGHT_BYTES
"""The same of two layers, and while Adam steps for one after the other, three more of one."""


def test_distribute_refuses_one_device() -> None:
    """What does not fit on one device is refused before anything runs, with the bytes that are short."""
    with pytest.raises(baechi.PlacementError, match=r"173\.52 KiB short") as caught:
        baechi.distribute(stack(), batch(), cluster=small(1), placer="single", optimizer="adam")
    assert caught.value.short_bytes == {"cpu:0": NEEDED_BYTES - MEMORY_BYTES}


def test_a_device_map_beyond_memory_is_refused() -> None:
    """A placement by hand keeps the devices' memory, or is refused with the device and the bytes."""
    with pytest.raises(baechi.PlacementError, match=r"cpu:1 by 173\.52 KiB") as caught:
        baechi.distribute(
            stack(), batch(), cluster=small(2), device_map={"": 1}, optimizer="adam", verify=False
        )
    assert caught.value.short_bytes == {"cpu:1": NEEDED_BYTES - MEMORY_BYTES}
    with pytest.raises(baechi.PlacementError, match="needs more memory than there is on cpu:1"):
        baechi.distribute(stack(), batch(), cluster=small(2), device_map={"": 1}, optimizer="adam")


@pytest.mark.parametrize("n", [1, 2])
def test_a_plan_beyond_memory_runs_out(n: int) -> None:
    """A plan made for larger devices runs out on these, in training, and the error has the bytes."""
    model = stack()
    graph = baechi.profile(model, batch(), cluster=small(1))
    plan = baechi.place(graph, baechi.Cluster.virtual(n), "single", optimizer="adam")
    baechi.assign(model, replace(plan, cluster=small(n)))
    with small(n), pytest.raises(baechi.DeviceMemoryError, match="zeros_like needs 16,384 bytes") as caught:
        train(model, adam(model))
    error = caught.value
    # weights and gradients of four layers, and the first moment of one; the loss is the host's
    assert (error.device, error.memory_bytes) == ("cpu:0", MEMORY_BYTES)
    assert (error.needed_bytes, error.live_bytes) == (WEIGHT_BYTES, 9 * WEIGHT_BYTES)


@pytest.mark.parametrize("placer", ["m-topo", "m-etf", "random:1", "auto"])
def test_two_devices_train_it(placer: str) -> None:
    """On two devices with half of what it needs, and room for a copy, it trains; the plan knew the bytes."""
    plain, model = stack(), stack()
    optimizers = [torch.optim.Adam(each.parameters(), lr=0.01, foreach=False) for each in (plain, model)]
    cluster = baechi.Cluster.virtual(2, memory=HALF_BYTES + BATCH_BYTES)
    baechi.distribute(model, batch(), cluster=cluster, placer=placer, optimizer=optimizers[1])
    plan = baechi.plan_of(model)
    peaks = plan.timeline.peak_bytes.values()  # a copy may come back late, when the optimizer steps
    assert all(HALF_BYTES <= peak <= HALF_BYTES + BATCH_BYTES for peak in peaks)
    for _ in range(3):
        train(plain, optimizers[0])
    with cluster:
        for _ in range(3):
            train(model, optimizers[1])
            assert set(baechi.last_step(model).peak_bytes.values()) == {HALF_BYTES}
    assert all(identical(a, b) for a, b in zip(plain.parameters(), model.parameters(), strict=True))


# --- what is planned to fit fits: devices with as much memory as the plan says


# GNMT's recurrent layers are in `test_peaks.py`
MODELS = {a.name: a for a in (our_own("inception-v3"), our_own("transformer"), *HELD_IN)}

PLACEMENTS = ((1, "single"), (2, "m-topo"), (3, "m-etf"), (3, "random:2"), (4, "random:4"))

OPTIMIZERS: tuple[Callable[[nn.Module], torch.optim.Optimizer], ...] = (
    lambda model: torch.optim.Adam(model.parameters(), foreach=False),
    lambda model: torch.optim.Adam(model.parameters(), foreach=True),
    lambda model: torch.optim.Adam(model.parameters(), fused=True),
)


@cache
def graph_of(name: str) -> baechi.LayerGraph:
    model, inputs = MODELS[name].build(), MODELS[name].inputs()
    return baechi.profile(model, inputs, cluster=baechi.Cluster.virtual(1), training=True)


TURNS = dict.fromkeys(
    [*in_turn(list(MODELS), PLACEMENTS), *in_turn(list(MODELS), PLACEMENTS[2:] + PLACEMENTS[:2])]
)
"""Each model by two of the placements."""


@pytest.mark.default_cases(2)
@pytest.mark.parametrize(("name", "n", "placer"), [(name, *placed) for name, placed in TURNS])
def test_predicted_peaks_suffice(name: str, n: int, placer: str) -> None:
    """With exactly the predicted peaks as memory, a model trains with Adam; no device goes beyond."""
    which = (list(MODELS).index(name) + PLACEMENTS.index((n, placer))) % len(OPTIMIZERS)
    plan = baechi.place(graph_of(name), baechi.Cluster.virtual(n), placer, optimizer="adam")
    predicted = plan.timeline.peak_bytes
    devices = [replace(device, memory_bytes=predicted[device.name]) for device in plan.cluster.devices]
    cluster = replace(plan.cluster, devices=tuple(devices))
    model = baechi.assign(MODELS[name].build().train(), replace(plan, cluster=cluster))
    optimizer = OPTIMIZERS[which](model)
    with cluster:
        for _ in range(2):
            optimizer.zero_grad()
            torch.autograd.backward(losses_of(model(**MODELS[name].inputs())))
            optimizer.step()
            measured = baechi.last_step(model).peak_bytes
            assert all(measured[device] <= predicted[device] for device in cluster.names)
            assert max(measured.values()) > 0


@pytest.mark.parametrize("accumulate", [False, True])
def test_gradients_that_are_added_up(accumulate: bool) -> None:
    """Two batches before the optimizer steps: planned for, they fit; else the plan says less."""
    model, cluster = stack().train(), baechi.Cluster.virtual(1)
    baechi.distribute(model, batch(), cluster=cluster, optimizer="sgd", accumulate=accumulate)
    predicted = baechi.plan_of(model).timeline.peak_bytes["cpu:0"]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    peaks = []
    with cluster:
        for _ in range(2):
            model(batch()).pow(2).mean().backward()
            peaks.append(baechi.last_step(model).peak_bytes["cpu:0"])
        optimizer.step()
    assert peaks[0] <= predicted
    assert (peaks[1] <= predicted) == accumulate
