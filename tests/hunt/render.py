"""From a recipe to Python text, and to a model."""

import copy
import inspect
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from . import parts
from .recipe import Recipe
from .scope import Scope, Source, Text
from .statements import write_all

HEAD = """\
import copy
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
"""

OUTPUTS = (
    "{a}",
    "({a}, {b})",
    "{{'first': {a}, 'second': {b}}}",
    "State({a} + {b}, 0.5)",
    "[{a}, {{'second': {b}, 'third': ({c}, None)}}]",
    "{a} + {b} + {c}",
)

GLOBALS: dict[str, Any] = {
    "copy": copy,
    "deque": deque,
    "dataclass": dataclass,
    "replace": replace,
    "torch": torch,
    "nn": nn,
    "F": functional,
    "checkpoint": checkpoint,
    **{name: getattr(parts, name) for name in parts.__all__},
}


def rendered(recipe: Recipe) -> Source:
    """The text of a model; its class is the last one, `Model`.

    Args:
        recipe: the model.
    """
    source = Source()
    text = Text("Model", inputs=["x", "y"])
    scope = Scope(source, text, ["x", "y"], returns=True)
    write_all(scope, recipe.body)
    first, second, third, form = recipe.outputs
    expression = OUTPUTS[form % len(OUTPUTS)]
    if "State" in expression:
        scope.part(parts.State)
    a, b, c = scope.tensor(first % 2), scope.tensor(1 + second % 3), scope.tensor(2 + third)
    scope.say(f"return {expression.format(a=a, b=b, c=c)}")
    source.classes.append(text)
    return source


def classes_text(source: Source) -> str:
    """The generated classes alone.

    Args:
        source: the text of a model.
    """
    return "\n\n\n".join(map(str, source.classes)) + "\n"


def whole_text(source: Source) -> str:
    """All that a model needs, as a Python module.

    Args:
        source: the text of a model.
    """
    needed = set(source.parts)
    if any(issubclass(getattr(parts, name), parts.Scaled) for name in needed):
        needed.add("Scaled")
    if "GivesState" in needed:
        needed.add("State")
    if "GivesNote" in needed or "TotalOfNote" in needed or "WritesNote" in needed:
        needed.add("Note")
    if "TotalOfState" in needed:
        needed.add("State")
    found = sorted(needed, key=lambda name: _line(getattr(parts, name)))
    texts = [inspect.getsource(getattr(parts, name)) for name in found]
    return "\n\n".join([HEAD, *texts, classes_text(source)])


def _line(part: Any) -> tuple[str, int]:
    return part.__module__, inspect.getsourcelines(part)[1]


def builder(recipe: Recipe, *, tracked: bool = False) -> Callable[[], nn.Module]:
    """What builds a recipe's model, the same each time.

    Args:
        recipe: the model.
        tracked: whether autograd is shown all writes to what it saved: checkpointed regions are plain
            calls, and shallow copies of tensors, which share their memory, are views.
    """
    names = {**GLOBALS, "__name__": "hunted"}
    if tracked:
        names |= {"checkpoint": _called, "copy": _Views}
    exec(compile(classes_text(rendered(recipe)), "<hunted>", "exec"), names)

    def build() -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(recipe.seed)
            model: nn.Module = names["Model"]()
        return model

    return build


def _called(function: Callable[..., Any], *args: Any, use_reentrant: bool) -> Any:
    """A checkpointed region without checkpointing."""
    del use_reentrant
    return function(*args)


class _Views:
    """The module `copy`, but for shallow copies of tensors."""

    deepcopy = staticmethod(copy.deepcopy)

    @staticmethod
    def copy(value: Any) -> Any:
        return value.view_as(value) if isinstance(value, torch.Tensor) else copy.copy(value)
