"""Module and inputs -> layer graph: what the model computes, and the bytes that it takes."""

from torch import nn

from baechi.backend.arguments import Arguments
from baechi.capture.build import Builder
from baechi.capture.fold import fold
from baechi.capture.granularity import Names, choose
from baechi.capture.run import run_once
from baechi.records.graph import LayerGraph
from baechi.records.inputs import Inputs


def capture(
    model: nn.Module,
    inputs: Inputs,
    *,
    training: bool,
    no_split_module_classes: Names | None = None,
    arguments: dict[str, Arguments] | None = None,
) -> LayerGraph:
    """Capture the layer graph of a model.

    Args:
        model: the model; left exactly as found.
        inputs: arguments of a call.
        training: whether memory is that of training (gradients, what autograd keeps) or inference.
        no_split_module_classes: class names, classes or qualified names kept whole besides those
            that gain nothing from being decomposed (`granularity`, `fold`).
        arguments: filled with what each module is called with, by the name of its node.

    Returns:
        The graph, in code order, with bytes and analytic counts and without seconds.

    Raises:
        CaptureError: the model does not run with these inputs.
        ValueError: `no_split_module_classes` names what the model does not have.
    """
    trace = run_once(model, inputs, training=training, arguments=arguments)
    finest = choose(model, trace, no_split_module_classes)
    graph = Builder(trace, finest).build()
    granularity = fold(finest, graph, trace)
    if granularity != finest:
        graph = Builder(trace, granularity).build()
    graph.graph["model"] = type(model).__name__
    if trace.uncounted:
        graph.graph["uncounted"] = sorted(trace.uncounted)
    return graph


__all__ = ["capture"]
