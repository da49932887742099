"""Stages have no circle for any graph and placement, and runs are the code's stretches in them."""

import networkx as nx
from hypothesis import given, settings
from hypothesis import strategies as st
from matrix import examples
from records.pipeline.chains import chain, over

from baechi.records import LayerGraph
from baechi.records.pipeline import Pipeline, Task, Units, units_of


@st.composite
def placed_graphs(draw: st.DrawFn) -> tuple[list[tuple[int, int]], list[int]]:
    size = draw(st.integers(1, 12))
    pairs = [(a, b) for b in range(size) for a in range(b)]
    edges = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    return sorted(edges), draw(st.lists(st.integers(0, 3), min_size=size, max_size=size))


@settings(max_examples=examples(300), deadline=None)
@given(placed_graphs())
def test_stages_have_no_circle(case: tuple[list[tuple[int, int]], list[int]]) -> None:
    """The quotient of any graph by its stages is acyclic, and so is the one by its runs."""
    edges, device_of = case
    units = Units.of(edges, set(edges), device_of, training=True)
    stage_of = [units.stage_of_run[run] for run in units.run_of]
    for part in (stage_of, units.run_of):
        quotient = nx.DiGraph((part[a], part[b]) for a, b in edges if part[a] != part[b])
        assert nx.is_directed_acyclic_graph(quotient)
    assert [units.device_of[stage] for stage in stage_of] == device_of
    for before, after in edges:
        if stage_of[before] != stage_of[after]:
            assert stage_of[after] in units.backward_after[stage_of[before]]
    done = set()
    for stage in units.backward_order:
        assert set(units.backward_after[stage]) <= done
        done.add(stage)


def test_devices_alone_would_be_a_circle() -> None:
    """A model that comes back to its first device has two stages there."""
    units = units_of(over(chain([(1, 1)] * 6), [0, 0, 1, 1, 0, 0]))
    assert units.device_of == (0, 1, 0)
    assert units.depths == ((0, 2), (1, 1), (2, 0))
    assert units.forward_after == ((), (0,), (1,))
    assert units.backward_after == ((1,), (2,), ())


def test_a_stage_of_several_runs() -> None:
    """Two towers whose layers alternate in the code: one stage and two runs on each device."""
    graph = nx.DiGraph(training=True)
    for name in ("a0", "b0", "a1", "b1"):
        graph.add_node(name)
    graph.add_edges_from([("a0", "a1"), ("b0", "b1")], bytes=1)
    made = over(LayerGraph.from_networkx(graph), [0, 1, 0, 1])
    pipeline = Pipeline(made, 2, tuple(units_of(made).tasks(2)))
    assert [stage.layers for stage in pipeline.stages] == [("a0", "a1"), ("b0", "b1")]
    assert [run.layers for run in pipeline.runs] == [("a0",), ("b0",), ("a1",), ("b1",)]
    assert len(pipeline.order) == 2 * (4 + 2)


def test_what_runs_on_the_host_is_in_no_stage() -> None:
    """A mask made of inputs alone cuts no run."""
    graph = nx.DiGraph(training=True)
    graph.add_node("x", kind="input")
    for name in ("l0", "mask", "l1", "l2"):
        graph.add_node(name, on_host=name == "mask")
    graph.add_edges_from([("x", "l0"), ("x", "mask"), ("l0", "l1"), ("mask", "l1"), ("l1", "l2")], bytes=1)
    made = over(LayerGraph.from_networkx(graph), [0, 1, 0, 1])
    pipeline = Pipeline(made, 1, tuple(units_of(made).tasks(1)))
    assert [run.layers for run in pipeline.runs] == [("l0", "l1"), ("l2",)]


def test_no_gradient_no_order() -> None:
    """Along an edge without a gradient, backward has nothing to wait for; without training there is none."""
    graph = chain([(1, 1)] * 2)
    graph.edges["l0", "l1"]["no_grad"] = True
    assert units_of(over(graph, [0, 1])).backward_after == ((), ())
    tasks = list(units_of(over(chain([(1, 1)] * 2, training=False), [0, 1])).tasks(2))
    assert tasks == [Task("forward", k, run) for k in range(2) for run in range(2)]
