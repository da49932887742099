"""What protects, and how it is removed; what the check says where it is missed."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest


@dataclass(frozen=True)
class Patch:
    """Something of the library put in the place of something else."""

    owner: Any
    name: str
    value: Any


@dataclass(frozen=True)
class Row:
    """One protection.

    Args:
        name: what protects.
        shows: what the check finds without it, as the beginning of a deviation (a regular expression).
        patches: how it is removed.
        launcher: with which launcher only it is needed; empty for any.
    """

    name: str
    shows: str
    patches: tuple[Patch, ...]
    launcher: str = ""

    @contextmanager
    def removed(self) -> Iterator[None]:
        """While this is open, the protection is not there."""
        with pytest.MonkeyPatch.context() as patch:
            for one in self.patches:
                patch.setattr(one.owner, one.name, one.value)
            yield


def row(name: str, shows: str, *patches: tuple[Any, str, Any], launcher: str = "") -> Row:
    """A row; its patches as owner, name and value."""
    return Row(name, shows, tuple([Patch(*patch) for patch in patches]), launcher)


def nothing(*_: Any, **__: Any) -> None:
    """Does nothing."""


def none_of(*_: Any) -> list[Any]:
    """Finds nothing."""
    return []


def when_called_by(function: str, value: Callable[..., Any], otherwise: Callable[..., Any]) -> Any:
    """A function that is another one for one caller."""

    def chosen(*args: Any, **kwargs: Any) -> Any:
        caller = sys._getframe(1).f_code.co_name
        return (value if caller == function else otherwise)(*args, **kwargs)

    return chosen


NUMBERS = r"output|gradient|buffer|notes"
ORDER = r"launched"
FORCED = r"forced"
RACE = r"StreamRaceError"
LEAK = r"alive"
ERROR = r"\w*Error"
RANDOM = r"random state|output"
