"""How the results of chunks become one, for each tensor of an output.

cat      put together along the dimension that grows with the items
same     one of them, since all are equal, bit for bit
sum      added up
mean     the mean, weighted by items
max      the largest, element by element
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from baechi.errors import FatalError

Rule = Callable[[list[Any]], Any] | str | tuple[str, int]
Out = Rule | Mapping[Any, Any] | Sequence[Any]

NAMES = ("auto", "cat", "same", "sum", "mean", "max")


@dataclass(frozen=True)
class Join:
    """A rule for one tensor, list or value.

    Args:
        name: one of `NAMES`, or `"function"`.
        dim: of `"cat"`, along which dimension; None for the one that was found.
        function: of `"function"`: takes the list of parts.
    """

    name: str = "auto"
    dim: int | None = None
    function: Callable[[list[Any]], Any] | None = None


def join_of(rule: Any, where: str) -> Join:
    """A rule, as it was written."""
    if callable(rule):
        return Join("function", function=rule)
    if isinstance(rule, str) and rule in NAMES:
        return Join(rule)
    if isinstance(rule, tuple) and len(rule) == 2 and rule[0] == "cat" and isinstance(rule[1], int):
        return Join("cat", rule[1])
    raise FatalError(
        f"out says {rule!r} for {where}: it takes {', '.join(map(repr, NAMES))}, ('cat', dim), or a "
        "function of the list of parts"
    )


def below(out: Any, key: Any, index: int | None = None) -> Any:
    """What `out` says of a part of an output."""
    if isinstance(out, Mapping):
        if key in out:
            return out[key]
        return out.get(index, "auto")
    if isinstance(out, list) or (isinstance(out, tuple) and not _is_cat(out)):
        at = key if isinstance(key, int) else index
        return out[at] if at is not None and at < len(out) else "auto"
    return out


def is_for_parts(out: Any) -> bool:
    """Whether `out` says something else of each part of an output."""
    return isinstance(out, (Mapping, list)) or (isinstance(out, tuple) and not _is_cat(out))


def check_out(out: Any) -> None:
    """Refuse an `out` that says no rules, before anything runs."""
    if isinstance(out, Mapping):
        for one in out.values():
            check_out(one)
    elif is_for_parts(out):
        for one in out:
            check_out(one)
    else:
        join_of(out, "an output")


def _is_cat(out: Sequence[Any]) -> bool:
    return len(out) == 2 and out[0] == "cat" and isinstance(out[1], int)
