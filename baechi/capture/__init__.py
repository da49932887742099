"""Module and inputs -> layer graph: what the model computes, and the bytes that it takes.

In:    a module and example inputs.
Out:   a `LayerGraph` with bytes and counts, without seconds.
Start: `watch/run`, then `graph/build`.
"""

from collections.abc import Sequence

from torch import nn

from baechi.capture.graph.build import Builder
from baechi.capture.graph.fold import fold
from baechi.capture.graph.granularity import Granularity, Names, choose, named_modules
from baechi.capture.graph.union import union
from baechi.capture.watch.run import run_once
from baechi.capture.watch.trace import Trace
from baechi.gc_pause import uncollected
from baechi.records.graph import LayerGraph
from baechi.records.inputs import Inputs
from baechi.torchlib.modules.arguments import Arguments


def capture(
    model: nn.Module,
    inputs: Inputs,
    *,
    training: bool,
    no_split_module_classes: Names | None = None,
    split_module_classes: Names | None = None,
) -> LayerGraph:
    """Capture the layer graph of a model."""
    (graph,) = capture_each(
        model,
        [inputs],
        training=training,
        no_split_module_classes=no_split_module_classes,
        split_module_classes=split_module_classes,
    )
    return graph


def capture_each(
    model: nn.Module,
    examples: Sequence[Inputs],
    *,
    training: bool,
    no_split_module_classes: Names | None = None,
    split_module_classes: Names | None = None,
    arguments: Sequence[dict[str, Arguments]] | None = None,
) -> list[LayerGraph]:
    """Capture a graph for each of several inputs, with the same layers, to be united."""
    named_modules(model, no_split_module_classes, split_module_classes)  # refused before the model runs
    kept: Sequence[dict[str, Arguments] | None] = arguments or [None for _ in examples]
    traces = [
        run_once(model, inputs, training=training, arguments=into)
        for inputs, into in zip(examples, kept, strict=True)
    ]
    return _graphs(model, traces, no_split_module_classes, split_module_classes)


@uncollected
def _graphs(
    model: nn.Module, traces: Sequence[Trace], no_split: Names | None, split: Names | None
) -> list[LayerGraph]:
    """The graphs of the traces, with the same layers."""
    granularity = _granularity(model, traces, no_split, split)
    graphs: list[LayerGraph] = []
    owners: dict[str, str] = {}
    for trace in traces:
        graph = Builder(trace, granularity, owners).build()
        graph.graph["model"] = type(model).__name__
        if trace.uncounted:
            graph.graph["uncounted"] = sorted(trace.uncounted)
        graphs.append(graph)
        for name, costs in graph.placed_costs():
            owners |= dict.fromkeys(costs.weights or (), name)
    return graphs


def _granularity(
    model: nn.Module, traces: Sequence[Trace], no_split: Names | None, split: Names | None
) -> Granularity:
    """One for all runs: a module is kept whole if all runs that call it would do so."""
    each = [choose(model, trace, no_split, split) for trace in traces]
    because = {name: why for granularity in each for name, why in granularity.because.items()}
    layers = frozenset[str]().union(*[granularity.layers for granularity in each])
    finest = Granularity(layers, because, each[0].split)
    whole: set[str] = set()
    decomposed: set[str] = set()
    for trace in traces:
        found = fold(finest, Builder(trace, finest).build(), trace)
        whole |= found.layers - finest.layers
        decomposed |= trace.called() - found.layers
        because = {**found.because, **because}
    return Granularity(finest.layers | (whole - decomposed), because, finest.split)


__all__ = ["capture", "capture_each", "union"]
