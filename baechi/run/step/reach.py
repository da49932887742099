"""A mode for layers that reach tensors inside objects: each is brought to the layer's device when used.

    model    rigid = Rigid(rotation, shift);  y = layer(x, rigid)     x is brought before the layer runs
    layer    y = x @ self.weight + rigid.shift                        rigid.shift is brought here

A tensor inside an object, a set, a closure, an iterator or another module cannot be replaced by a copy
without rebuilding that object. So the object stays, and this mode checks the arguments of each function.
"""

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from baechi.run.steady.arguments import plain_tensors
from baechi.run.steady.functions import function_facts
from baechi.run.step.contents import Contents
from baechi.run.step.removable_mode import RemovableMode
from baechi.run.step.step import Step
from baechi.torchlib.dynamo import uncompiled
from baechi.torchlib.operators.functions import touched
from baechi.torchlib.private.modes import (
    function_mode_count,
    function_modes,
    pop_function_mode,
    push_function_mode,
)
from baechi.torchlib.tensors.pytree import tensors_in
from baechi.torchlib.tensors.storage import Mark, mark_of, stamp


class Reach(TorchFunctionMode):
    """The function mode that is on while such a layer runs.

    Args:
        step: the step.
        place: where the layer runs.
        turn: the layer's place in the code's order.
    """

    def __init__(self, step: Step, place: str, turn: int) -> None:
        super().__init__()
        self._step, self._place, self._turn = step, place, turn
        self._stamps = step.backend.session is None
        self._made_here: set[Mark] = set()
        """The marks of memory that functions of this layer made: it lies here, and no other part made it."""

    @uncompiled
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        facts = function_facts(func)
        name, rule = facts.name, facts.rule
        if rule.query or rule.keeps_arguments or rule.leaves:
            return func(*args, **kwargs)
        if self._all_here(args, kwargs):
            return self._made(func(*args, **kwargs))
        self._step.may_write(touched(func, name, args, kwargs))
        (args, kwargs), loans = self._step.lend((args, kwargs), self._place)
        return loans.settle(self._made(func(*args, **kwargs)), written=bool(rule.writes))

    def _made(self, result: Any) -> Any:
        """What a layer makes inside lies where the layer lies.

        Emulated devices outside of `with cluster:` have no other way to know: without this, what the layer
        made would be brought to it once more by each function that takes it.
        """
        if not self._stamps:
            return result
        known, place = self._made_here, self._place
        for tensor in (result,) if isinstance(result, torch.Tensor) else tensors_in(result):
            mark = mark_of(tensor)
            if mark in known:
                continue
            stamp(tensor, place, self._turn, renew=False)
            # of memory that had a mark before, another part may have made what shows it
            if mark is None and self._step.short and self._step.backend.place_of(tensor) == place:
                made = mark_of(tensor)
                if made is not None:
                    known.add(made)
        return result

    def _all_here(self, args: Any, kwargs: dict[str, Any]) -> bool:
        known = self._made_here
        given = plain_tensors(args, kwargs)
        given = list(tensors_in(args, kwargs)) if given is None else given
        others = [tensor for tensor in given if mark_of(tensor) not in known]
        place_of, boundary = self._step.backend.place_of, self._step.boundary
        for tensor in others:
            if place_of(tensor) != self._place:
                return False
        return boundary is None or not others or not boundary.is_apart(others)


def hides_elsewhere(step: Step, place: str, objects: list[Any]) -> bool:
    """Whether objects may hold tensors that are not on a device."""
    place_of, boundary = step.backend.place_of, step.boundary

    def is_elsewhere(tensor: torch.Tensor) -> bool:
        return place_of(tensor) != place or (boundary is not None and boundary.is_apart((tensor,)))

    contents = Contents(*objects, until=is_elsewhere)
    return contents.is_met or contents.unseen


def hidden_elsewhere(step: Step, place: str, args: Any, kwargs: dict[str, Any]) -> str:
    """The error text for a layer that failed while arguments hold tensors on other devices."""
    named = [*((f"argument {index}", value) for index, value in enumerate(args)), *kwargs.items()]
    found = []
    for name, value in named:
        places = {step.backend.place_of(tensor) for tensor in Contents(value).tensors} - {place}
        if places and not isinstance(value, torch.Tensor):
            found.append(f"{name} ({type(value).__name__}) holds tensors on {', '.join(sorted(places))}")
    if not found:
        return ""
    return (
        f"{'; '.join(found)}: these are brought to {place} only when a torch function takes them. "
        "Pass them as arguments of their own, or place the layer where they lie"
    )


def reach_here() -> Reach | None:
    """The mode of the layer whose code runs in this thread, if it is on."""
    modes = reversed(function_modes())
    return next((mode for mode in modes if isinstance(mode, Reach)), None)


class ReachAside:
    """Within this context, the running layer's mode is off, so that another layer can launch."""

    __slots__ = ("_above",)

    def __enter__(self) -> None:
        self._above: list[Any] = []
        while function_mode_count() and reach_here() is not None:
            self._above.append(pop_function_mode())

    def __exit__(self, *_: object) -> None:
        for mode in reversed(self._above):
            push_function_mode(mode)


class ModesAside(ReachAside):
    """Within this context, the glue mode is off, too: what launches belongs to no code that runs around it.

    Args:
        glue: the open step's glue mode.
    """

    __slots__ = ("_depth", "_glue")

    def __init__(self, glue: RemovableMode) -> None:
        self._glue = glue

    def __enter__(self) -> None:
        self._depth = self._glue.leave()
        self._above = []
        if function_mode_count():
            super().__enter__()

    def __exit__(self, *_: object) -> None:
        if self._above:
            super().__exit__()
        self._glue.come_back(self._depth)
