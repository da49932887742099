"""Attributes of a NetworkX graph as typed rows: what those of nodes and of edges have in common.

A subclass is a frozen dataclass. Each of its fields declares one attribute:

    param_bytes: Annotated[float, "bytes", "Parameters, by storage."] = 0
                           type    unit     documentation             if missing

The subclass is the list of known attributes; checks (`schema`) and documentation are made from it.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Self, TypeVar, get_args

from baechi.errors import RecordError
from baechi.records.schema import readers, within

AMOUNTS = ("s", "bytes", "FLOP", "number")
"""The units of amounts: numbers that are finite and not negative."""

_Key = TypeVar("_Key")


@dataclass(frozen=True)
class AbstractAttributes:
    """The attributes of a node or an edge at one moment; a missing one has its default."""

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> Self:
        """The attributes of a node or an edge."""
        row = object.__new__(cls)
        # A dataclass keeps its defaults in the class, so only what is said is copied. This is ten times
        # faster than `cls(**said)`, which sets every field; graphs have tens of thousands of nodes.
        copy = row.__dict__
        copy.update(said)
        if None in copy.values():
            for name in [name for name, value in copy.items() if value is None]:
                del copy[name]
        return row

    @classmethod
    def amounts(cls, *units: str) -> tuple[str, ...]:
        """The names of the attributes that are amounts, in the order of the fields."""
        return tuple([field.name for field in fields(cls) if get_args(field.type)[1] in (units or AMOUNTS)])

    @classmethod
    def faults(cls, rows: Iterable[tuple[_Key, Mapping[str, Any]]]) -> Iterator[tuple[_Key, str, str]]:
        """What is wrong with the attributes of nodes or edges."""
        reads = readers(cls)
        for key, said in rows:
            for name, value in said.items():
                if name in reads and value is not None:
                    try:
                        reads[name](value)
                    except RecordError as error:
                        for path, what in within(f".{name}", error):
                            yield key, path, what

    @classmethod
    def read(cls, said: Mapping[str, Any], *names: str) -> dict[str, Any]:
        """Attributes that are records, as their forms read them: a file may say 2.0 where it means 2."""
        return {name: readers(cls)[name](said[name]) for name in names if said.get(name) is not None}

    @classmethod
    def documented(cls) -> str:
        """The list of all attributes: name, unit, default, meaning."""
        lines = []
        for field in fields(cls):
            _, unit, text = get_args(field.type)
            default = "" if field.default is None else f"; {field.default!r} if missing"
            lines.append(f"- `{field.name}` ({unit}{default}): {text}")
        return "\n".join(lines)


def scaled(amount: Any, share: float) -> Any:
    """An amount, one number or by kind of device, times a share; nothing is 0."""
    if isinstance(amount, Mapping):
        return {kind: value * share for kind, value in amount.items()}
    return (amount or 0) * share
