"""What is the same at each call of a functional op (glue): its name, its rule, whether it has a fast path."""

from dataclasses import dataclass
from functools import lru_cache
from types import FunctionType
from typing import Any

from baechi.torchlib.operators.functions import function_name, may_ask_to_write, reads_device, writes_first
from baechi.torchlib.operators.rule import Rule
from baechi.torchlib.operators.table import rule_of
from baechi.torchlib.private.operators import OpOverload

_KEPT = 4096
"""Functions that are known at once; a model's code may make new ones at each step."""


@dataclass(frozen=True, slots=True)
class FunctionFacts:
    """What is known of a function before it is called.

    Args:
        name: its name.
        rule: its row of the table.
        asks: whether it only asks a tensor something.
        asks_device: whether that is where it lies.
        short: whether the fast path may run it: it runs where its tensors lie, and so does its result.
        may_write: whether it may write an argument in place.
        quiet: whether it computes or answers, and does nothing else to its arguments.
        plain: whether it is quiet, and what it returns are tensors.
    """

    name: str
    rule: Rule
    asks: bool
    asks_device: bool
    short: bool
    may_write: bool
    quiet: bool
    plain: bool


@lru_cache(maxsize=_KEPT)
def function_facts(func: Any) -> FunctionFacts:
    """What is known of a function before it is called."""
    name = function_name(func)
    rule = rule_of(name)
    # a library's own function may do more with its arguments than compute with them
    foreign = isinstance(func, FunctionType) and not func.__module__.startswith(("torch.", "baechi."))
    quiet = not (foreign or rule.keeps_arguments or rule.new_memory or rule.resizes)
    plain = quiet and not (rule.query or rule.leaves or isinstance(func, OpOverload))
    return FunctionFacts(
        name=name,
        rule=rule,
        asks=rule.query and not rule.new_memory,
        asks_device=reads_device(func),
        short=plain and not (rule.takes_device or rule.moves or rule.shaped_like),
        may_write=bool(writes_first(name) or rule.writes or may_ask_to_write(func)),
        quiet=quiet,
        plain=plain,
    )
