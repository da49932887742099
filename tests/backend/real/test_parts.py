"""One device split in several: places by marks, a stream each, the same numbers."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from architectures import HELD_IN, OWN, Architecture
from backend.real.fake_driver import FakeDriver, FakeStream, Races
from backend.real.parts import graph_of, parts
from same import ROUNDING, assert_same, step
from torch import nn

import baechi
from baechi import backend
from baechi.backend.real import devices as torch_devices
from baechi.backend.real.streams import TorchStreams
from baechi.torchlib.tensors.pytree import tensors_in

pytestmark = pytest.mark.default_cases(2)

NAMES = ("t5", "gpt2", "resnet", "mixtral")
ROWS = [row for row in (*OWN, *HELD_IN) if row in OWN or row.name in NAMES]
REORDER = (False, "host", "threads")


@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize("architecture", ROWS, ids=lambda row: row.name)
def test_same_numbers(architecture: Architecture, training: bool) -> None:
    """By several placers, on two and three parts, with and without reordering: two ways each, by turns."""
    turn = ROWS.index(architecture)
    reference = step(architecture.build(), architecture.inputs(), training=training)
    graph = graph_of(architecture, training)
    for index, (n, placer) in enumerate(((2, "m-etf"), (3, "random:0"), (3, "random:1"), (2, "single"))):
        plan = baechi.place(graph, parts(n), placer)
        for reorder in (REORDER[(turn + index) % 3], REORDER[(turn + index + 1) % 3]):
            model = baechi.assign(architecture.build(), plan, reorder=reorder)
            result = step(model, architecture.inputs(), training=training)
            assert_same(reference, result, tolerance=0.0 if architecture in OWN else ROUNDING)


def on_streams(
    architecture: Architecture, reorder: Any, monkeypatch: pytest.MonkeyPatch
) -> tuple[FakeDriver, Races]:
    """Call a model on three parts of a card that is not there, inputs on the card, without gradients."""
    driver = FakeDriver(streams=True)
    monkeypatch.setattr(backend, "TorchDevices", lambda names: torch_devices.TorchDevices(names, driver))
    plan = baechi.place(graph_of(architecture, training=False), parts(3), "random:1")
    model = baechi.assign(architecture.build().eval(), plan, reorder=reorder)
    races = Races(driver)
    with races, torch.no_grad():
        for _ in range(2):
            inputs = {key: value.clone() for key, value in architecture.inputs().items()}
            result = model(**inputs)
            for tensor in [*tensors_in(result), *inputs.values()]:
                tensor.copy_(tensor.clone())  # the caller may write what it got and what it gave
            for weight in model.parameters():
                weight.mul_(1)
    return driver, races


STREAMED = [row for row in (*OWN, *HELD_IN) if row.name in NAMES or row in OWN]
STREAMED = [row for row in STREAMED if all(isinstance(v, torch.Tensor) for v in row.inputs().values())]


@pytest.mark.parametrize("architecture", STREAMED, ids=lambda row: row.name)
def test_streams_are_ordered(architecture: Architecture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part computes on its own stream; whatever two streams touch is ordered, the caller's among
    them, and the allocator is told."""
    for reorder in (False, "host"):
        driver, races = on_streams(architecture, reorder, monkeypatch)
        assert not races.found
        assert len(races.streams_seen) > 3
        assert driver.used


class Constant(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self) -> torch.Tensor:
        return self.weight * 2


class Unlinked(nn.Module):
    """A layer that is given nothing, so that only the step itself says when it may run."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.table = nn.Linear(4, 4), nn.Linear(4, 4), Constant()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(self.first(x).float() + self.table())
        return out


@pytest.mark.parametrize("missing", ["step", "within a card", "wait", "own stream"])
def test_every_wait_is_needed(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one of them something is not ordered, or does not overlap."""
    if missing == "step":
        monkeypatch.setattr(TorchStreams, "stepping", lambda self: nullcontext())
    elif missing == "within a card":

        def two(self: TorchStreams, source: str, target: str) -> Any:
            return self._transfer.setdefault((source, target), (FakeStream("tx"), FakeStream("rx")))

        monkeypatch.setattr(TorchStreams, "transfer", two)
    elif missing == "wait":
        monkeypatch.setattr(torch_devices.TorchDevices, "wait", lambda self, stream, event: None)
    else:
        monkeypatch.setattr(TorchStreams, "at", lambda self, place: nullcontext())
    architecture = Architecture("unlinked", Unlinked, lambda: {"x": torch.ones(2, 4)})
    _, races = on_streams(architecture, "host", monkeypatch)
    assert races.found
