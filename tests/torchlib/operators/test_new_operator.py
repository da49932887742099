"""A custom operator, and its one row: capture, the emulated cluster and the runtime follow.

Each test runs with the row and without it, so that it is the row which makes the difference.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from architectures.base import noise, seeded
from backend.virtual.machine.by_hand import after, cluster_of, compute, emulator, host_s, on, side, zeros
from order.interleaved import interleaved
from run.launch.reordering.models import Net, shifts
from torch import Tensor, library

import baechi
from baechi.backend import backend_of
from baechi.errors import StreamRaceError
from baechi.run.steady.functions import function_facts
from baechi.torchlib.operators import table
from baechi.torchlib.operators.facts import facts_of
from baechi.torchlib.operators.rule import Rule
from baechi.torchlib.operators.table import rule_of

_library = library.Library("baechi_rows", "FRAGMENT")
_library.define("remember(Tensor x, Tensor total) -> Tensor")
_library.define("pick(Tensor x, Tensor like) -> Tensor")


def _remember(x: Tensor, total: Tensor) -> Tensor:
    """Adds to a total, which neither its schema says nor the total's version."""
    total.data.add_(x.sum(0))
    return x * 2


def _pick(x: Tensor, like: Tensor) -> Tensor:
    """Reads a shape of its second argument, and nothing more."""
    return x * like.shape[0]


_library.impl("remember", _remember, "CPU")
_library.impl("pick", _pick, "CompositeImplicitAutograd")
library.register_fake("baechi_rows::remember", lambda x, _: torch.empty_like(x))

REMEMBER = Rule(writes=("total",), flops=lambda x, *_: 1000 * x.numel())
AddRow = Callable[[str, Rule], None]


@pytest.fixture
def add_row(monkeypatch: pytest.MonkeyPatch) -> Iterator[AddRow]:
    """Adds rows to the table for one test."""

    def forget() -> None:
        rule_of.cache_clear()
        facts_of.cache_clear()
        function_facts.cache_clear()

    def add(name: str, rule: Rule) -> None:
        monkeypatch.setitem(table.RULES, name, rule)
        forget()

    forget()
    yield add
    monkeypatch.undo()
    forget()


def remembered(net: Any, x: Tensor) -> Tensor:
    """A layer reads the total before the operator writes it, and another one afterwards."""
    a = net.a(x)
    c = net.c(net.total)
    n = torch.ops.baechi_rows.remember(x, net.total)
    b, d = net.b(x), net.d(net.total)
    out: Tensor = a + b + c + d + n
    return out


def build() -> Net:
    """The layers that read the total lie on another device, and the first of them launches late."""
    model: Net = seeded(lambda: Net(remembered, shifts("abcd")))().eval()  # type: ignore[assignment]
    model.register_buffer("total", torch.zeros(8))
    return model


def captured() -> tuple[baechi.LayerGraph, str]:
    model = build()
    graph = baechi.profile(model, {"x": torch.ones(3, 8)}, cluster=baechi.Cluster.virtual(1), training=False)
    (node,) = [name for name in graph.nodes if "remember" in str(name)]
    return graph, node


def test_capture_follows(add_row: AddRow) -> None:
    """It comes after who reads what it writes; its operations are those of the row."""
    graph, node = captured()
    assert not graph.has_edge("c", node)
    assert graph.nodes[node].get("flops", 0) == 0
    add_row("remember", REMEMBER)
    graph, node = captured()
    assert graph.edges["c", node]["order_only"]
    assert graph.nodes[node]["flops"] == 1000 * 3 * 8


def test_capture_counts_it(add_row: AddRow, caplog: pytest.LogCaptureFixture) -> None:
    """An operator whose row has a formula is none of those that no formula counts."""
    captured()
    assert "remember" in caplog.text
    caplog.clear()
    add_row("remember", REMEMBER)
    captured()
    assert "remember" not in caplog.text


def read_aside(ordered: bool) -> None:
    total, x = zeros("cpu:0", 8), zeros("cpu:0", 24).view(3, 8)
    aside = side("cpu:0")
    after(aside, compute("cpu:0"))
    torch.ops.baechi_rows.remember(x, total)
    if ordered:
        after(aside, compute("cpu:0"))
    with on(aside):
        total.clone()
    after(compute("cpu:0"), aside)


def test_the_emulated_cluster_follows(add_row: AddRow) -> None:
    """What it writes races with a stream that reads; ordered, it does not."""
    with cluster_of():
        read_aside(ordered=False)  # without a row, nobody can know
    add_row("remember", REMEMBER)
    with cluster_of():
        read_aside(ordered=True)
    with pytest.raises(StreamRaceError, match="remember"), cluster_of():
        read_aside(ordered=False)


def seconds() -> float:
    with cluster_of():
        total, x = zeros("cpu:0", 8), zeros("cpu:0", 24).view(3, 8)
        emulator().synchronize()
        begun_s = host_s()
        torch.ops.baechi_rows.remember(x, total)
        emulator().synchronize()
        return host_s() - begun_s


def test_the_emulated_cluster_takes_its_time(add_row: AddRow) -> None:
    """A kernel takes as long as its bytes, or as its flops; what computes nothing takes no time."""
    assert seconds() == 24 + 8 + 24
    add_row("remember", Rule(flops=lambda *_: 10**14))
    assert seconds() == 100.0
    add_row("remember", Rule(computes=False))
    assert seconds() == 0.0


def is_as_on_one_device() -> bool:
    plain, model, cluster = build(), build(), baechi.Cluster.virtual(3)
    with torch.no_grad(), cluster:
        graph = baechi.profile(build(), {"x": noise(3, 8)}, cluster=cluster, training=False)
        plan = interleaved(graph, cluster, {"": 0, "far": 1, "d": 1, "c": 1}, "bacd")
        baechi.assign(model, plan, reorder="host")
        same = [torch.equal(model(x=noise(3, 8)), plain(x=noise(3, 8))) for _ in range(2)]
    return all(same) and torch.equal(model.total, plain.total)


def test_the_runtime_follows(add_row: AddRow) -> None:
    """Reordered over two devices, all is as on one device, if the row says what it writes."""
    assert not is_as_on_one_device()
    add_row("remember", REMEMBER)
    assert is_as_on_one_device()


def place_of_result() -> str:
    def code(net: Net, x: Tensor) -> Tensor:
        out: Tensor = torch.ops.baechi_rows.pick(net.a(x), net.b(torch.cat([x, x])))
        net.notes.append(backend.place_of(out))
        return out

    model = Net(code, shifts("ab"))
    cluster = baechi.Cluster.virtual(2)
    backend = backend_of(cluster)
    with cluster:
        graph = baechi.profile(model, {"x": torch.ones(3, 8)}, cluster=cluster, training=False)
        baechi.assign(model, baechi.Plan.from_device_map(graph, cluster, {"": 0, "b": 1}), reorder=False)
        model(x=torch.ones(3, 8))
    (place,) = model.notes
    return str(place)


def test_the_runtime_places_it(add_row: AddRow) -> None:
    """It runs where its larger input lies, unless that says a shape only."""
    assert place_of_result() == "cpu:1"
    add_row("pick", Rule(shaped_like=True))
    assert place_of_result() == "cpu:0"
