"""What a model runs is told once: the line, the record, the report and the measured step agree."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import baechi
from baechi import Cluster, Device, Link, Pipeline
from baechi.report import to_html, to_text
from baechi.report.summary import summary
from baechi.units import format_bytes, format_seconds
from baechi.zoo import gnmt, transformer


class Chain(nn.Module):
    """Layers in a row, and the mean of squares."""

    def __init__(self, layers: int = 6, width: int = 64) -> None:
        super().__init__()
        self.layers = nn.Sequential(*[nn.Linear(width, width) for _ in range(layers)])

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).square().mean()


class Towers(nn.Module):
    """Two rows side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = Chain(3).layers, Chain(3).layers

    def forward(self, x: Tensor) -> Tensor:
        return (self.left(x) + self.right(x)).square().mean()


class Words(nn.Module):
    """A language model of two blocks, with its loss."""

    def __init__(self, *, tied: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, 32)
        self.blocks = nn.Sequential(
            *[nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True) for _ in range(2)]
        )
        self.head = nn.Linear(32, 100, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        return nn.functional.cross_entropy(
            self.head(self.blocks(self.embedding(ids))).flatten(0, 1), ids.flatten()
        )


class Convolutions(nn.Module):
    """A few convolutions with batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Flatten()
        )

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images).square().mean()


def zoo(make: Callable[..., Any]) -> Callable[[], tuple[nn.Module, Any]]:
    return lambda: make("small")


def slow(number: int, memory: int = 2**34) -> Cluster:
    """Emulated devices on which kernels take longer than their launches."""
    devices = [Device(f"cpu:{n}", "slow", memory, 1.0, {"float32": 1e8}, 1e10) for n in range(number)]
    return Cluster(tuple(devices), link=Link(5e-6, 3e11), emulated=True)


@dataclass(frozen=True)
class Case:
    """A model, its batch, its devices, and how it is distributed."""

    make: Callable[[], tuple[nn.Module, Any]]
    cluster: Cluster
    how: dict[str, Any] = field(default_factory=dict)


X, IDS = torch.linspace(-1, 1, 32 * 64).view(32, 64), torch.arange(64).view(8, 8)
FAST = Cluster.virtual(2)
CASES = {
    "chain": Case(lambda: (Chain(), (X,)), FAST),
    "towers": Case(lambda: (Towers(), (X,)), slow(2)),
    "words tied": Case(lambda: (Words(tied=True), (IDS,)), slow(2)),
    "convolutions": Case(lambda: (Convolutions(), (torch.ones(4, 3, 9, 9),)), FAST),
    "gnmt": Case(zoo(gnmt), slow(2)),
    "transformer": Case(zoo(transformer), Cluster.virtual(3), {"placer": "m-topo"}),
    "pipelined chain": Case(lambda: (Chain(), (X,)), slow(3), {"microbatches": 8}),
    "pipelined words": Case(lambda: (Words(), (IDS,)), slow(2), {"microbatches": "auto"}),
    "pipelined, slower": Case(lambda: (Towers(), (X,)), FAST, {"microbatches": 4}),
    "pipelined, tight": Case(
        lambda: (Chain(4, 256), (X.repeat(32, 4),)), slow(2, 4_200_000), {"microbatches": 4}
    ),
}


def distributed(case: Case, **how: Any) -> tuple[nn.Module, Any, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model, inputs = case.make()
    optimizer = torch.optim.Adam(model.parameters())
    baechi.distribute(model, inputs, cluster=case.cluster, optimizer=optimizer, effort=0, **how)
    return model, inputs, optimizer


@pytest.mark.parametrize("name", CASES)
def test_one_truth(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Step, peaks and devices; and the plan without microbatches is the one that `distribute` makes."""
    case = CASES[name]
    model, inputs, optimizer = distributed(case, verbose=True, **case.how)
    line, record = capsys.readouterr().err.splitlines()[-1], baechi.plan_of(model)
    with case.cluster:
        for _ in range(2):
            outputs = model(*inputs)
            loss = outputs if outputs.dim() == 0 else outputs.square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            measured = baechi.last_step(model)
        with torch.no_grad():
            model.eval()(*inputs)
            evaluated = baechi.last_step(model)
    step_s, pipelined = record.timeline.makespan_s, "microbatches" in case.how

    assert (measured.mode, evaluated.mode) == ("training", "inference")
    assert isinstance(record, Pipeline) == pipelined
    assert measured.makespan_s == pytest.approx(step_s, rel=1e-3 if pipelined else 1e-9)
    exact = not pipelined or record.timeline.source == "dry run"
    for device, peak in record.timeline.peak_bytes.items():
        assert measured.peak_bytes[device] == peak if exact else measured.peak_bytes[device] <= peak
    ran = {span.where for span in measured.spans if span.kind == "compute"}
    assert ran == set(record.devices_used) == set(record.to_device_map().values())

    fullest = max(record.devices_used, key=lambda device: record.timeline.peak_bytes[device])
    peak = format_bytes(record.timeline.peak_bytes[fullest])
    assert line.startswith(summary(record)) and f"step {format_seconds(step_s)}" in line and peak in line
    assert format_seconds(step_s) in repr(record)
    for shown in (str(record), to_text(record, measured, width=200), to_html(record, measured)):
        assert f"Predicted step: {format_seconds(step_s)}." in " ".join(shown.split())
    assert f"Measured: {format_seconds(measured.makespan_s)}." in " ".join(to_text(record, measured).split())
    assert "in inference, where training is" in " ".join(to_text(record, evaluated).split())
    assert type(record).from_json(record.to_json()).timeline.makespan_s == pytest.approx(step_s)
    assert "same time" in str(baechi.compare(record, record))

    if name == "pipelined, tight":
        assert " (no plan without microbatches fits), " in line
        with pytest.raises(baechi.PlacementError):
            distributed(case)
    elif isinstance(record, Pipeline):
        plain = baechi.plan_of(distributed(case)[0])
        assert record.unsplit is not None
        assert record.unsplit.timeline.makespan_s == plain.timeline.makespan_s
        assert record.unsplit.timeline.peak_bytes == plain.timeline.peak_bytes
        assert f"instead of {format_seconds(plain.timeline.makespan_s)} without microbatches" in line
        slower = step_s > plain.timeline.makespan_s
        assert ("microbatches=4 is slower than none" in line) == slower == (name == "pipelined, slower")
