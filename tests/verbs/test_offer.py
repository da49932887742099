"""Microbatches are offered where they gain, and never where rows are coupled; `"auto"` then is one."""

import copy
import logging
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import baechi
from baechi.cost.rows import of_rows
from baechi.records import Cluster, Device, Link, Plan
from baechi.verbs.offer import offer

X = torch.randn(32, 64, generator=torch.Generator().manual_seed(1))


class Chain(nn.Module):
    """Layers in a row; with a target the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*[nn.Linear(64, 64) for _ in range(8)])

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        made: Tensor = self.layers(x)
        return made if y is None else (made - y).square().mean()


class Contrastive(Chain):
    """Each row is told from the others."""

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        made = self.layers(x)
        return -(made @ made.T).log_softmax(0).diagonal().mean()


class Centred(Chain):
    """No loss, and each row's output depends on the others'."""

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        made = super().forward(x)
        return made - made.mean(0)


def slow_devices(number: int = 4) -> Cluster:
    """Emulated devices on which a chain's kernels take longer than their launches."""
    kind = Device("cpu:0", "slow", 2**34, 1.0, {"float32": 1e8}, 1e10)
    devices = [Device(f"cpu:{n}", kind.kind, 2**34, 1.0, kind.flops_per_s, 1e10) for n in range(number)]
    return Cluster(tuple(devices), link=Link(5e-6, 3e11), emulated=True, launch_s=5e-6)


def said(make: Callable[[], nn.Module], batch: Any, capsys: pytest.CaptureFixture[str], **how: Any) -> str:
    """The last line of `distribute`."""
    torch.manual_seed(0)
    model = make()
    state = torch.get_rng_state()
    baechi.distribute(model, batch, cluster=slow_devices(), verbose=True, **how)
    assert torch.equal(torch.get_rng_state(), state)
    return capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("batch", [X, (X, X)], ids=["outputs", "loss"])
def test_offered(batch: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """The gain that is said is that of the pipeline which is then placed; without a loss in reach, too."""
    line = said(Chain, batch, capsys)
    assert line.endswith("; 3.3 times as fast with microbatches=8")
    graphs = {
        number: baechi.profile(
            Chain(), (X, X), cluster=slow_devices(), source="estimate", microbatches=number
        )
        for number in (1, 8)
    }
    steps = [
        baechi.place(graph, slow_devices(), microbatches=number, effort=0).timeline.makespan_s
        for number, graph in graphs.items()
    ]
    assert steps[0] / steps[1] == pytest.approx(3.3, abs=0.1)


@pytest.mark.parametrize("how", [{}, {"device_map": {"layers.0": 0, "layers": 1}}, {"order": "gpipe"}])
def test_what_was_gained(how: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    """A pipeline's last line has its step beside that of the plan without microbatches."""
    line = said(Chain, (X, X), capsys, microbatches=8, **how)
    found = re.fullmatch(r".* in 8 microbatches, .*: step (.*) ms instead of (.*) ms without microb.*", line)
    assert found is not None and ", fullest cpu:" in line, line
    plain = said(Chain, (X, X), capsys, **{key: value for key, value in how.items() if key != "order"})
    assert float(found[2]) == pytest.approx(float(plain.split("step ")[1].split(" ms")[0]), rel=0.02)
    assert how or float(found[1]) < float(found[2]) / 3


@pytest.mark.parametrize(
    ("make", "batch", "how"),
    [
        (Chain, X[:1], {}),
        (Chain, [(X,), (X[:16],)], {}),
        (Chain, X, {"device_map": {"layers": 0}}),
        (Contrastive, X, {}),
        (Centred, X, {}),
    ],
    ids=["one row", "examples", "by hand", "coupled loss", "coupled outputs"],
)
def test_not_offered(
    make: Callable[[], nn.Module], batch: Any, how: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Not for a batch of one, several batches, a placement by hand, or rows that are coupled."""
    assert "microbatches" not in said(make, batch, capsys, **how)


def test_no_gain() -> None:
    """One device has nothing to gain; a graph on the way of a fifth at least is worth a line."""
    graph = baechi.profile(Chain(), X, cluster=slow_devices(), source="estimate")
    whole = dict.fromkeys(graph.placed(), "cpu:0")
    assert offer(Plan(graph, slow_devices(1), whole), 32) is None
    assert offer(Plan(graph, slow_devices(), whole), None) is None
    found = offer(Plan(graph, slow_devices(), whole), 2)
    assert found is not None and found.microbatches == 2


@pytest.mark.parametrize("bytes_per_s", [1e6, 1e10], ids=["bound by memory", "bound by arithmetic"])
def test_of_rows(bytes_per_s: float) -> None:
    """What grows with the rows is divided; weights stay, and so does the time to read them."""
    devices = [replace(device, bytes_per_s=bytes_per_s) for device in slow_devices().devices]
    cluster = replace(slow_devices(), devices=tuple(devices))
    graph = baechi.profile(Chain(), X, cluster=cluster, source="estimate")
    part = of_rows(graph, 1 / 8, devices)
    exact = baechi.profile(Chain(), X[:4], cluster=cluster, source="estimate")
    for name in graph.placed():
        for amount in ("param_bytes", "grad_bytes", "output_bytes", "saved_bytes", "flops", "moved_bytes"):
            assert part.amount(name, amount) == exact.amount(name, amount), (name, amount)
        for seconds in ("forward_s", "backward_s"):
            ours, theirs = [getattr(one.costs(name), seconds)["slow"] for one in (part, exact)]
            assert ours == pytest.approx(theirs, rel=0.03), (name, seconds)
    assert all(part.edge_costs(*edge).bytes == exact.edge_costs(*edge).bytes for edge in part.edges)


@pytest.mark.default_cases(1)
@pytest.mark.parametrize("first_call", [False, True])
def test_auto_is_one_where_the_loss_couples_rows(first_call: bool, caplog: pytest.LogCaptureFixture) -> None:
    """The step is that of the whole batch, and it is said why; also when planned at the first call."""
    model = Contrastive()
    plain = copy.deepcopy(model)
    cluster = slow_devices()
    with caplog.at_level(logging.WARNING):
        baechi.distribute(model, None if first_call else X, cluster=cluster, microbatches="auto")
        with cluster:
            loss = model(X)
            loss.backward()
    assert "microbatches='auto' is one" in caplog.text
    expected = plain(X)
    expected.backward()
    assert torch.equal(loss, expected)
    pairs = zip(model.parameters(), plain.parameters(), strict=True)
    assert all(torch.equal(one.grad, other.grad) for one, other in pairs)  # type: ignore[arg-type]
