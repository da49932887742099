"""The code behind what a class or a module holds: functions of Python, and those inside of them."""

import functools
import types
from collections.abc import Iterator
from typing import Any


def functions_of(value: Any) -> Iterator[types.FunctionType]:
    """The functions behind a function, a method, a property, or something that was decorated."""
    kind = type(value)  # a proxy answers `__class__` by code of its own, which may raise
    if issubclass(kind, property):
        for part in (value.fget, value.fset):
            yield from functions_of(part)
    elif issubclass(kind, (classmethod, staticmethod, types.MethodType)):
        yield from functions_of(value.__func__)
    elif issubclass(kind, functools._lru_cache_wrapper):
        yield from functions_of(value.__wrapped__)
    elif issubclass(kind, types.FunctionType):
        yield value
        yield from functions_of(vars(value).get("__wrapped__"))


def codes_of(function: types.FunctionType) -> Iterator[types.CodeType]:
    """The code of a function, and of the functions inside of it."""
    waiting = [function.__code__]
    while waiting:
        code = waiting.pop()
        yield code
        waiting += [inner for inner in code.co_consts if isinstance(inner, types.CodeType)]
