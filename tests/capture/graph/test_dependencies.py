"""The dependencies of a graph are those of the real run: none is missing, none is invented."""

from collections.abc import Callable
from itertools import combinations

import networkx as nx
import pytest
from architectures import HELD_IN, OTHERS, OWN, Architecture
from architectures.graphs import assert_each_is_owned_once, assert_weights_add_up
from capture.cases import CASES, Case
from capture.oracle import Record, really_run
from torch import nn

from baechi import zoo
from baechi.capture import capture
from baechi.records import Inputs, LayerGraph

pytestmark = pytest.mark.default_cases(2)

FAMILIES = (
    "mistral", "gemma2", "falcon", "qwen2_moe", "mamba", "deberta_v2", "albert", "longformer", "led",
    "swin", "resnet", "wav2vec2", "funnel",
)  # fmt: skip

Made = tuple[nn.Module, Inputs]


def of_the_zoo(name: str) -> Callable[[], Made]:
    def make() -> Made:
        model, inputs = zoo.MODELS[name]("small")
        return model, Inputs(*inputs)

    return make


def of_the_table(architecture: Architecture) -> Callable[[], Made]:
    return lambda: (architecture.build(), Inputs(**architecture.inputs()))


MODELS: dict[str, Callable[[], Made]] = {name: of_the_zoo(name) for name in zoo.MODELS} | {
    row.name: of_the_table(row)
    for row in (*HELD_IN, *OTHERS, *OWN)
    if row in HELD_IN or row in OWN or row.name in FAMILIES
}


@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize("name", MODELS)
def test_dependencies(name: str, training: bool) -> None:
    """The last writer of what a node reads, and who read what it writes, come before it; and every
    edge with data stands for something that was read."""
    model, inputs = MODELS[name]()
    assert_each_is_owned_once(assert_right(model, inputs, training=training), model)


@pytest.mark.parametrize("case", [case for case in CASES if not case.several], ids=lambda case: case.key)
def test_dependencies_of_small_models(case: Case) -> None:
    """So are those of the models whose graphs are known by heart."""
    model, (inputs,) = case.make()
    assert_right(model, inputs, training=case.training, whole=case.whole)


def test_what_is_missing_or_invented_is_found() -> None:
    """Each edge that no way around makes up for is missed; each one that is not there is an invention."""
    model, inputs = MODELS["in_place_views"]()
    graph = capture(model, inputs, training=True)
    record = really_run(model, inputs, graph, training=True)
    for edge in list(graph.edges):
        less = graph.copy()
        less.remove_edge(*edge)
        if not nx.has_path(less, *edge):
            with pytest.raises(AssertionError):
                assert_complete(less, record)
    order = list(graph.code_order())
    for one, other in combinations(order, 2):
        if not graph.has_edge(one, other):
            more = graph.copy()
            more.add_edge(one, other, bytes=4, tensor="0")
            with pytest.raises(AssertionError):
                assert_witnessed(more, record)


def assert_right(
    model: nn.Module, inputs: Inputs, *, training: bool, whole: tuple[str, ...] = ()
) -> LayerGraph:
    """Everything that must hold of a graph, as a real run shows it."""
    graph = capture(model, inputs, training=training, no_split_module_classes=whole)
    record = really_run(model, inputs, graph, training=training)
    assert {node for node in graph if not graph.nodes[node].get("unread")} <= record.nodes
    assert all(node.startswith(("glue:", "input:")) for node in record.nodes - set(graph))
    assert nx.is_directed_acyclic_graph(graph)
    assert_complete(graph, record)
    assert_witnessed(graph, record)
    assert_weights_add_up(graph, model)
    return graph


def assert_complete(graph: LayerGraph, record: Record) -> None:
    """Whoever wrote last what a node reads is among its ancestors; so are, for a writer, the readers
    of what it writes. (A node that reads what it wrote needs nobody.)

    Code that asks whether its tensors are real (masks of transformers: `is_tracing(mask) or mask.all()`)
    asks for more when they are. Such glue is not in the graph, nor are inputs that nobody reads; and
    nobody in the graph may need either.
    """
    before = {node: {node} | nx.ancestors(graph, node) for node in graph}
    writer: dict[int, str] = {}
    readers: dict[int, set[str]] = {}
    for event in record.events:
        last = writer.get(event.storage, event.node)
        if event.node not in graph:
            if event.kind == "write":
                writer[event.storage] = event.node
            continue
        if event.kind == "read":
            assert last in before[event.node], f"{event.node} reads what {last} wrote"
            readers.setdefault(event.storage, set()).add(event.node)
        elif event.kind == "write":
            assert last in before[event.node], f"{event.node} writes after {last}"
            missing = readers.pop(event.storage, set()) - before[event.node]
            assert not missing, f"{event.node} writes what {missing} read"
            writer[event.storage] = event.node


def assert_witnessed(graph: LayerGraph, record: Record) -> None:
    """Each edge with data leads from the last writer of something, from a layer that handed it on
    since, or from the owner of a weight, to a node that reads it."""
    sources: dict[int, set[str]] = {}
    witnessed: set[tuple[str, str]] = set()
    owners = {name: node for node in graph for name in graph.nodes[node].get("weights", ())}
    for number, names in record.weights.items():
        sources[number] = {owners[name] for name in names}
    for event in record.events:
        known = sources.setdefault(event.storage, set())
        if event.node not in graph:
            continue
        if event.kind == "read":
            witnessed |= {(source, event.node) for source in known}
        elif event.kind == "write":
            sources[event.storage] = {event.node}
        else:
            known.add(event.node)
    edges = {(a, b) for a, b, data in graph.edges(data=True) if not data.get("order_only")}
    assert not edges - witnessed
