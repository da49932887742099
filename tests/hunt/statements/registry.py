"""The kinds of statements: a name, how often it is drawn, and a function that writes its code."""

from collections.abc import Callable
from dataclasses import dataclass

from ..recipe import Statement
from ..scope import Scope

Writer = Callable[[Scope, Statement], None]


@dataclass(frozen=True)
class Kind:
    """A kind of statement.

    Args:
        write: writes its code; nothing where that is impossible.
        weight: how often it is drawn, relative to others.
        has_body: whether it has statements inside.
        draws: whether it draws random numbers.
    """

    write: Writer
    weight: float
    has_body: bool = False
    draws: bool = False


KINDS: dict[str, Kind] = {}


def statement(weight: float, *, has_body: bool = False, draws: bool = False) -> Callable[[Writer], Writer]:
    """Register a kind, under the function's name.

    Args:
        weight: see `Kind`.
        has_body: see `Kind`.
        draws: see `Kind`.
    """

    def register(write: Writer) -> Writer:
        KINDS[write.__name__] = Kind(write, weight, has_body, draws)
        return write

    return register


def write_all(scope: Scope, body: tuple[Statement, ...]) -> None:
    """Write statements, one after the other.

    Args:
        scope: where.
        body: the statements.
    """
    for each in body:
        KINDS[each.kind].write(scope, each)
