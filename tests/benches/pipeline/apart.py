"""The same pipeline with the backward of weights apart (zero bubble)."""

from dataclasses import replace

from baechi.records.pipeline import Pipeline
from baechi.simulate.pipeline import ordered


def with_weights_apart(made: Pipeline) -> Pipeline:
    """A pipeline on the same placement, with gradients of weights as tasks of their own, ordered anew.

    Args:
        made: a pipeline in training.
    """
    plan = replace(made.plan, graph=made.plan.graph.noted(weights_apart=True))
    return ordered(plan, made.microbatches, split=made.split)
