"""The shortest way: a layer whose arguments lie at its place, in a step in which nothing can wait.

what the full path does           why it may be left out here
looks for what travels            all arguments are tensors, and lie at the layer's place
orders writes and transfers       the layer writes nothing that other code reads
sets device, stream and clock     the place has none of these
asks for the layer's turn         the step has no schedule
"""

from typing import Any

import torch
from torch import nn

from baechi.errors import note_where
from baechi.run.steady.layers import LayerFacts
from baechi.torchlib.modules.intercept import forward_to_run
from baechi.torchlib.tensors.storage import stamp

LEFT_OUT: Any = object()
"""In place of a result: the layer did not run."""


def run_swiftly(module: nn.Module, glue: Any, facts: LayerFacts, args: tuple[Any, ...]) -> Any:
    """Run a layer, if its arguments allow it.

    Args:
        module: the layer.
        glue: the glue mode of the open step, of which `Step.swift` holds.
        facts: what is known of the layer.
        args: its arguments, all by position.

    Returns:
        What the layer returns, marked; `LEFT_OUT` if it has to take another way.
    """
    step, place = glue.step, facts.place
    reads = facts.reads_in_training if module.training else facts.reads_in_evaluation
    if not reads or facts.reaches or step.inside is not None or place not in step.bare:
        return LEFT_OUT
    depth, lies_here = glue.leave(), facts.lies_here
    try:
        for value in args:
            if not isinstance(value, torch.Tensor) or not lies_here(value):
                return LEFT_OUT
        call, turn = "", next(step.turns)
        if facts.sends or step.sites is not None:  # else only its device matters, not which call it is
            call = step.reach(facts.name, args, {})
        step.inside = place
        result = forward_to_run(module)(*args)
        if not isinstance(result, torch.Tensor):
            step.stamp(result, place, turn, renew=True)
            return result
        stamp(result, place, turn, renew=True)
        if facts.sends:
            step.send_ahead(call, result)
        return result
    except Exception as error:
        note_where(error, layer=facts.name, kind=type(module).__name__, device=place)
        raise
    finally:
        step.inside = None
        glue.come_back(depth)
