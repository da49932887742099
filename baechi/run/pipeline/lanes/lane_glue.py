"""Functional ops of one microbatch: as in any step, and each belongs to a run and a stage."""

from typing import Any

import torch

from baechi.errors import UNSPLIT_CURE, BaechiError
from baechi.run.pipeline.lanes.lane_step import LaneStep
from baechi.run.steady.arguments import plain_tensors
from baechi.run.steady.functions import FunctionFacts
from baechi.run.step.glue import GlueMode
from baechi.torchlib.operators.functions import ASKED_BY_NAME
from baechi.torchlib.tensors.pytree import tensors_in

_DERIVES = frozenset([torch.autograd.grad, torch.autograd.backward, torch.Tensor.backward])


class LaneGlue(GlueMode):
    """The function mode that is on while a microbatch runs the model's own code.

    Args:
        step: the microbatch's step.
    """

    step: LaneStep

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _DERIVES:
            raise BaechiError(
                f"the model's code calls torch.autograd.{func.__name__} between its layers, and a step in "
                "microbatches cuts its history between stages: call it inside of one layer "
                f"(no_split_module_classes makes a module one), or {UNSPLIT_CURE}"
            )
        return super().__torch_function__(func, types, args, kwargs)

    def _run(
        self, func: Any, facts: FunctionFacts, turn: int, there: str | None, args: Any, kwargs: dict[str, Any]
    ) -> Any:
        step = self.step
        step.backend.spend("lane_op", step.backend.host)
        # what the full path does and this leaves out: transfers, cuts, turns of lanes
        if there is None and facts.short and step.short and not facts.may_write:
            given = plain_tensors(args, kwargs) if ASKED_BY_NAME.isdisjoint(kwargs) else None
            place = None if given is None else step.stays_here(facts.name, given)
            if given and place is not None:
                bare = place in step.bare
                result = func(*args, **kwargs) if bare else self._at(place, func, args, kwargs)
                step.stamp(result, place, turn, renew=result is given[0])
                step.made(result)
                return result
        given = list(tensors_in(args, kwargs))
        place, _ = self._place(func, facts.name, there, args, kwargs, given)
        if place is not None:
            step.reach_function(facts.name, place, given)
        step.read_shared(given)
        result = super()._run(func, facts, turn, there, args, kwargs)
        step.made(result)
        return result
