"""What is said when nothing fits: the reason, the numbers, what would help."""

from collections.abc import Iterator
from typing import Any

import pulp
import pytest
from place.graphs import cluster_of, graph_of

from baechi.errors import PlacementError
from baechi.place import find, fit, solver
from baechi.place.auto import best
from baechi.place.problem import Problem
from baechi.records import Cluster, LayerGraph
from baechi.simulate import Rehearsal
from baechi.verbs.plans import place

PLACERS = ("m-topo", "m-etf", "m-sct", "chain", "even", "round-robin", "random:0", "auto")


def blocks(*sizes: int, **attributes: Any) -> LayerGraph:
    """Layers of these sizes, without edges."""
    return graph_of({f"l{index}": {"param_bytes": size} for index, size in enumerate(sizes)}, **attributes)


def refused(graph: LayerGraph, cluster: Cluster, placer: str = "auto") -> PlacementError:
    """The error of a placer, as a user gets it."""
    with pytest.raises(PlacementError) as caught:
        place(graph, cluster, placer)
    return caught.value


@pytest.mark.parametrize("placer", PLACERS)
def test_layer(placer: str) -> None:
    """A layer that no device holds by itself."""
    error = refused(blocks(10, 130), cluster_of(100, 120), placer)
    assert str(error) == (
        "layer l1 is larger than every device: it needs at least 130 B\n"
        "  d0: 100 B, 30 B short\n"
        "  d1: 120 B, 10 B short\n"
        "What would help: splitting the layer, devices with more memory, or a smaller batch."
    )
    assert (error.layer, error.short_bytes) == ("l1", {"d0": 30, "d1": 10})


def test_what_a_sum_refuses_no_placer_is_asked() -> None:
    """Proofs take a sum of bytes, placers far longer."""
    graph, cluster, asked = blocks(60, 70, 80), cluster_of(100, 100), []
    with pytest.raises(PlacementError, match="larger than all devices together"):
        best(graph, cluster, asked.append, Rehearsal(graph, cluster))  # type: ignore[arg-type]
    assert not asked


@pytest.mark.parametrize(("why_not", "how"), [("", " (split='auto')"), ("it has a hook", "")])
def test_a_layer_that_a_rule_splits(why_not: str, how: str) -> None:
    """The cure says how, unless the rule is refused for it."""
    splits = {"shapes": {"weight": [13, 10]}, "tied": {}, "refused": why_not}
    graph = graph_of({"head": {"param_bytes": 130, "splits": splits}})
    error = refused(graph, cluster_of(100, 120), "m-etf")
    assert f"What would help: splitting the layer{how}, devices" in str(error)


@pytest.mark.parametrize("placer", [*PLACERS, "direct"])
def test_group(placer: str) -> None:
    """Layers that share a device, none of them too large alone; with or without a simulator at hand."""
    layer = {"param_bytes": 2048, "colocate": "tied"}
    graph = graph_of({"a": {"param_bytes": 1024}, "b": dict(layer), "c": dict(layer)}, training=True)
    cluster = cluster_of(3072, 2048)
    with pytest.raises(PlacementError) as caught:
        find("m-topo")(graph, cluster) if placer == "direct" else place(graph, cluster, placer)
    assert str(caught.value) == (
        "2 parts that must share a device (b, c, which the model's code joins) are larger than every device: "
        "they need at least 4.00 KiB together\n"
        "  d0: 3.00 KiB, 1.00 KiB short\n"
        "  d1: 2.00 KiB, 2.00 KiB short\n"
        "What would help: devices with more memory, an optimizer with less state, or a smaller batch."
    )
    assert (caught.value.layer, caught.value.short_bytes) == ("b", {"d0": 1024, "d1": 2048})


@pytest.mark.parametrize("placer", PLACERS)
def test_pins(placer: str) -> None:
    """Layers that fit everywhere, and not together where they are pinned."""
    graph = graph_of({"a": {"param_bytes": 60, "pin": "d1"}, "b": {"param_bytes": 70, "pin": "d1"}})
    error = refused(graph, cluster_of(1000, 100), placer)
    assert str(error) == (
        "2 layers are pinned to d1, b the largest: they need at least 130 B together\n"
        "  d1: 100 B, 30 B short\n"
        "What would help: fewer pins, devices with more memory, or a smaller batch."
    )
    assert (error.layer, error.short_bytes) == ("b", {"d1": 30})


def test_pinned_layer() -> None:
    """A layer that would fit on another device than it is pinned to."""
    graph = graph_of({"a": {"param_bytes": 60, "pin": "d1"}})
    error = refused(graph, cluster_of(1000, 50))
    assert str(error).startswith(
        "layer a, pinned there, is larger than its device: it needs at least 60 B\n  d1"
    )


@pytest.mark.parametrize("placer", PLACERS)
def test_total(placer: str) -> None:
    """More than all devices have."""
    error = refused(blocks(40, 40, 45, 40), cluster_of(80, 80), placer)
    assert str(error).startswith(
        "all layers together are larger than all devices together, by 5 B: they need at least 165 B, the "
        "devices have 160 B; the largest is l2 with 45 B\n"
        "  2 x cpu (d0 and d1), each: 80 B, 3 B short\n"
    )
    assert "What would help: another device" in str(error)
    assert (error.layer, error.short_bytes) == ("l2", {"d0": 3, "d1": 3})


@pytest.mark.parametrize("placer", PLACERS)
def test_few_placements(placer: str) -> None:
    """Room for all together, and none for three of them on two devices: every placement was tried."""
    error = refused(blocks(60, 60, 60), cluster_of(100, 100), placer)
    assert str(error).startswith("no placement of these layers keeps every device's memory: all were tried\n")
    assert error.short_bytes == {"d1": 20} or error.short_bytes == {"d0": 20}
    assert "short in the nearest try" in str(error)


@pytest.mark.parametrize("placer", PLACERS)
def test_program_without_solution(placer: str) -> None:
    """Too many placements to try; the integer program has no solution, which is a proof."""
    error = refused(blocks(*[6] * 8), cluster_of(*[10] * 7), placer)
    first, second, *_ = str(error).split("\n")
    assert first.startswith("no placement of these layers keeps every device's memory")
    assert first.endswith("the integer program of it has no solution")
    assert second.endswith("short in the nearest try")
    assert sum(error.short_bytes.values()) > 0


@pytest.fixture
def no_highs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As if HiGHS were not installed."""
    solver._has_highs.cache_clear()
    monkeypatch.setattr(pulp.HiGHS, "available", lambda self: False)
    yield
    solver._has_highs.cache_clear()


@pytest.mark.usefixtures("no_highs")
def test_other_solver() -> None:
    """CBC proves and packs as well."""
    assert "has no solution" in str(refused(blocks(*[6] * 8), cluster_of(*[10] * 7), "m-etf"))
    sizes = [51, 27, 22, 49, 30, 21, 35, 33, 32, 26, 25, 49]
    graph, cluster = blocks(*sizes), cluster_of(*[100] * 4)
    found = fit(Problem(graph, cluster), Rehearsal(graph, cluster))
    assert all(peak <= 100 for peak in found.peak_bytes)


def test_not_found() -> None:
    """Where nothing is proved, the error says so, and by how much the nearest try missed."""
    graph, cluster = blocks(*[6] * 12, pin=None), cluster_of(100, 100)
    tries: list[tuple[Any, ...]] = []

    def never(device_of: Any, place: Any) -> tuple[float, list[int]]:
        tries.append((*device_of, *place))
        return 1.0, [103, 100]

    with pytest.raises(PlacementError) as caught:
        fit(Problem(graph, cluster), never)
    assert str(caught.value).startswith(
        f"none of {len(tries)} placements keeps every device's memory, though there may be one that does\n"
        "  d0: 100 B, 3 B short in the nearest try\n"
    )
    assert caught.value.short_bytes == {"d0": 3}
    assert len(set(tries)) == len(tries) < 100  # none is simulated twice
