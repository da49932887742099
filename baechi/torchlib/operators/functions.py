"""Torch functions, as a model's code calls them and a function mode receives them."""

import functools
import inspect
from typing import Any

import torch

from baechi.torchlib.operators.facts import facts_of, writes_of
from baechi.torchlib.operators.table import RULES, WRITES_IF, rule_of
from baechi.torchlib.private.operators import OpOverload
from baechi.torchlib.tensors.pytree import tensors_in

_VIEWS = frozenset({"T", "mT", "H", "mH", "real", "imag"})
"""Properties that compute: autograd records them."""


def function_name(func: Any) -> str:
    """The name of what a function mode receives: an operator's without its overload, a view's (`T`)."""
    if reads_property(func) and described(func) in _VIEWS:
        return described(func)
    named = func.overloadpacket if isinstance(func, OpOverload) else func
    return str(getattr(named, "__name__", ""))


def reads_property(func: Any) -> bool:
    """Whether a function mode receives a read of a tensor's property."""
    return getattr(func, "__name__", "") == "__get__"


def described(func: Any) -> str:
    """A function's name; a property's, if it reads one."""
    name = getattr(func, "__name__", "a function")
    return str(getattr(func.__self__, "__name__", name)) if reads_property(func) else str(name)


def reads_device(func: Any) -> bool:
    """Whether a function mode receives a read of `x.device`, torch's own or an emulated cluster's."""
    owner = getattr(func, "__self__", None)
    return reads_property(func) and (described(func) == "device" or owner is vars(torch.Tensor).get("device"))


def writes_first(name: str) -> bool:
    """Whether a torch function writes its first argument in place, by its name."""
    return rule_of(name).writes_first or (name.endswith("_") and not name.startswith("__"))


def written_in_place(func: Any, name: str, args: Any, kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The tensors that a function says that it writes: by its name, `out=`, `inplace=`, `max_norm=`."""
    written = list(tensors_in(kwargs.get("out")))
    if not args:
        return written
    if not written and writes_first(name):
        written = list(tensors_in(args[0]))
    for argument, index in WRITES_IF.items():
        position = _position(func, argument)
        asked = kwargs.get(argument) or (position is not None and position < len(args) and args[position])
        if asked and index < len(args) and isinstance(args[index], torch.Tensor):
            written.append(args[index])
    return written


def may_ask_to_write(func: Any) -> bool:
    """Whether a function takes an argument by position that makes it write in place."""
    return any(_position(func, argument) is not None for argument in WRITES_IF)


def touched(func: Any, name: str, args: Any, kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The tensors that a function may write in place, those among them of which it does not say so."""
    found = written_in_place(func, name, args, kwargs)
    if isinstance(func, OpOverload):  # a custom operator: its name follows no rule
        found += writes_of(facts_of(func), args, kwargs)
    elif rule_of(name).writes:
        found += tensors_in(args[1:], kwargs)  # builtins have no signature: it is some of these
    return found


@functools.lru_cache(maxsize=4096)
def _position(func: Any, argument: str) -> int | None:
    """Where a function of `torch.nn.functional` takes an argument by position."""
    if not inspect.isfunction(func):
        return None
    names = list(inspect.signature(func, follow_wrapped=False).parameters)
    return names.index(argument) if argument in names else None


def _ways_to_ask(name: str) -> list[Any]:
    """What a function mode receives when code reads this property of a tensor."""
    if not hasattr(torch.Tensor, name):
        return []  # this torch has no such attribute
    asked = getattr(torch.Tensor, name)
    answers = rule_of(name).answers
    if answers == "attribute":
        return [asked.__get__]
    return [asked, getattr(torch, name)] if answers == "function" else [asked]


ASKED_BY_NAME = frozenset({"out", *WRITES_IF})
"""Arguments by name that make a function write in place."""

QUESTIONS = frozenset([way for name, rule in RULES.items() if rule.answers for way in _ways_to_ask(name)])
"""What a value that waits answers without being computed."""


def is_question(func: Any) -> bool:
    """Whether a value that waits answers a function without being computed."""
    return func in QUESTIONS or isinstance(getattr(func, "__self__", None), property)
