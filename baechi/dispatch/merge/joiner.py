"""Joining the parts of an output, tensor by tensor, through whatever holds them."""

import copy
import dataclasses
import functools
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any

import torch

from baechi.dispatch.merge.alone import Alone
from baechi.dispatch.merge.equality import equal_values, same_tensors
from baechi.dispatch.merge.growth import growing_dim
from baechi.dispatch.merge.rules import Join, below, is_for_parts, join_of
from baechi.errors import FatalError
from baechi.torchlib.private.tensors import REGISTERED_CONTAINERS

Path = tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class Shapes:
    """How outputs grow.

    Args:
        runs: the results of two runs, with tensors that have shapes only.
        items: how many items each had.
    """

    runs: tuple[Any, Any]
    items: tuple[int, int]


class Joiner:
    """Joins the results of chunks.

    Where chunks differ in size, they show themselves how outputs grow; else the model is asked.

    Args:
        items: how many items each chunk had.
        out: what the user said.
        shapes: finds how outputs grow; None if the model does not tell.
        alone: what the model gives for rows alone; nothing if that is known, or cannot be.
    """

    def __init__(
        self,
        items: Sequence[int],
        out: Any,
        shapes: Callable[[], Shapes | None],
        alone: Callable[[], Sequence[Alone]],
    ) -> None:
        self._items = list(items)
        self._out = out
        self._shapes = functools.cache(shapes)
        self._alone = functools.cache(alone)

    def join(self, parts: list[Any]) -> Any:
        """The parts as one."""
        return self._join((), parts, self._out)

    def _join(self, path: Path, parts: list[Any], out: Any) -> Any:
        first = parts[0]
        if callable(out) and not is_for_parts(out):
            return out(parts)
        if any(type(part) is not type(first) for part in parts):
            kinds = ", ".join(sorted({type(part).__name__ for part in parts}))
            raise _refusal(path, f"it is of another type in other chunks ({kinds})")
        if isinstance(first, torch.Tensor):
            return self._tensors(path, parts, join_of(out, _named(path)))
        if isinstance(first, Mapping):
            return self._mappings(path, parts, out)
        if isinstance(first, (list, tuple)):
            return self._sequences(path, parts, out)
        if dataclasses.is_dataclass(first) and not isinstance(first, type):
            return self._dataclasses(path, parts, out)
        if type(first) in REGISTERED_CONTAINERS:
            return self._registered(path, parts, out)
        return self._values(path, parts, join_of(out, _named(path)))

    def _values(self, path: Path, parts: list[Any], rule: Join) -> Any:
        first = parts[0]
        if isinstance(first, (int, float)) and not isinstance(first, bool) and rule.name in _OF_NUMBERS:
            tensors: list[torch.Tensor] = [torch.tensor(part, dtype=torch.float64) for part in parts]
            return type(first)(self._reduced(rule.name, tensors).item())
        if all(part is first or equal_values(part, first) for part in parts[1:]):
            if rule.name == "auto" and isinstance(first, (int, float)) and not isinstance(first, bool):
                self._check(path, first, None)
            return first
        raise _refusal(path, f"it is a {type(first).__name__}, and not the same in all chunks")

    def _tensors(self, path: Path, parts: list[torch.Tensor], rule: Join) -> torch.Tensor:
        if rule.name == "cat" and rule.dim is not None:
            return self._cat(path, parts, rule.dim)
        if rule.name in _OF_NUMBERS:
            if any(part.shape != parts[0].shape for part in parts):
                shapes = ", ".join(str(tuple(part.shape)) for part in parts[:4])
                raise _refusal(path, f"{rule.name!r} needs one shape, and it has {shapes}")
            return self._reduced(rule.name, parts)
        dim = None if rule.name == "same" else self._growing(path, parts)
        if dim is not None:
            if rule.name == "auto":
                self._check(path, parts[0], dim)
            return self._cat(path, parts, dim)
        if rule.name == "cat":
            raise _refusal(path, f"no dimension of {tuple(parts[0].shape)} grows with the items")
        if all(same_tensors(part, parts[0]) for part in parts[1:]):
            if rule.name == "auto":
                self._check(path, parts[0], None)
            return parts[0]
        raise _refusal(path, "no dimension of it grows with the items, and chunks have other values")

    def _check(self, path: Path, part: Any, dim: int | None) -> None:
        """Refuse what a row alone contradicts."""
        if dim is None and len(set(self._items)) > 1:
            return  # chunks of several sizes have shown it
        for alone in self._alone():
            why = alone.contradicts(_at(alone.result, path), part, dim)
            if why:
                raise _refusal(path, why)

    def _growing(self, path: Path, parts: list[torch.Tensor]) -> int | None:
        """The dimension to put parts together along."""
        first, count = parts[0].shape, self._items[0]
        for part, items in zip(parts, self._items, strict=True):
            if items != count:
                return self._grows(path, first, part.shape, (count, items))
        one, other = self._seen(path, torch.Tensor)
        shapes = self._shapes()
        if one is not None and shapes is not None:
            return self._grows(path, one.shape, other.shape, shapes.items)
        raise _refusal(path, f"all chunks have {count} items, and the model does not show how it grows")

    def _grows(self, path: Path, one: torch.Size, other: torch.Size, items: tuple[int, int]) -> int | None:
        try:
            return growing_dim(one, other, items)
        except ValueError as error:
            raise _refusal(path, str(error)) from error

    def _seen(self, path: Path, kind: type[Any]) -> tuple[Any, Any]:
        """What the two runs have at a path; None if it is something else there."""
        shapes = self._shapes()
        if shapes is None:
            return None, None
        found = [_at(run, path) for run in shapes.runs]
        return (found[0], found[1]) if all(isinstance(one, kind) for one in found) else (None, None)

    def _cat(self, path: Path, parts: list[torch.Tensor], dim: int) -> torch.Tensor:
        try:
            return torch.cat(parts, dim)
        except (RuntimeError, IndexError) as error:
            raise _refusal(path, f"its parts do not go together along dimension {dim} ({error})") from error

    def _reduced(self, name: str, parts: list[torch.Tensor]) -> torch.Tensor:
        if name == "max":
            largest = parts[0]
            for part in parts[1:]:
                largest = torch.maximum(largest, part)
            return largest
        total = sum(self._items)
        added = parts[0] * (self._items[0] / total) if name == "mean" else parts[0]
        for part, count in zip(parts[1:], self._items[1:], strict=True):
            added = added + (part * (count / total) if name == "mean" else part)
        return added

    def _sequences(self, path: Path, parts: list[Any], out: Any) -> Any:
        first = parts[0]
        rule = None if is_for_parts(out) else join_of(out, _named(path))
        if isinstance(first, list) and self._is_list_of_items(path, parts, rule):
            return [item for part in parts for item in part]
        if any(len(part) != len(first) for part in parts):
            lengths = ", ".join(str(len(part)) for part in parts[:4])
            raise _refusal(path, f"it has another length in other chunks ({lengths})")
        names = getattr(first, "_fields", None) or range(len(first))
        joined = [
            self._join((*path, name), [part[i] for part in parts], below(out, name, i))
            for i, name in enumerate(names)
        ]
        return type(first)(*joined) if hasattr(first, "_fields") else type(first)(joined)

    def _is_list_of_items(self, path: Path, parts: list[Any], rule: Join | None) -> bool:
        """Whether a list has an entry (or several) for each item, as detectors return it."""
        if rule is not None and rule.name == "same":
            return False
        if len(set(self._items)) > 1:
            return _in_proportion([len(part) for part in parts], self._items)
        one, other = self._seen(path, list)
        shapes = self._shapes()
        if one is None or shapes is None:
            return False
        return _in_proportion([len(one), len(other)], shapes.items)

    def _mappings(self, path: Path, parts: list[Any], out: Any) -> Any:
        first = parts[0]
        if any(list(part) != list(first) for part in parts):
            raise _refusal(path, "its keys are other ones in other chunks")
        joined = {
            key: self._join((*path, key), [part[key] for part in parts], below(out, key, i))
            for i, key in enumerate(first)
        }
        if not isinstance(first, MutableMapping):
            return joined
        result = copy.copy(first)
        for key, value in joined.items():
            result[key] = value
        return result

    def _dataclasses(self, path: Path, parts: list[Any], out: Any) -> Any:
        result = copy.copy(parts[0])
        for i, field in enumerate(dataclasses.fields(result)):
            name = field.name
            if hasattr(result, name):
                of_parts = [getattr(part, name) for part in parts]
                joined = self._join((*path, name), of_parts, below(out, name, i))
                object.__setattr__(result, name, joined)  # frozen ones, too
        return result

    def _registered(self, path: Path, parts: list[Any], out: Any) -> Any:
        node = REGISTERED_CONTAINERS[type(parts[0])]
        flat = [node.flatten_fn(part) for part in parts]
        children = [list(children) for children, _ in flat]
        joined = [
            self._join((*path, _Child(i)), [part[i] for part in children], out)
            for i in range(len(children[0]))
        ]
        return node.unflatten_fn(joined, flat[0][1])


@dataclasses.dataclass(frozen=True)
class _Child:
    """In a path: a child of a type that is registered as a container."""

    index: int

    def __str__(self) -> str:
        return str(self.index)


_OF_NUMBERS = ("sum", "mean", "max")


def _at(run: Any, path: Path) -> Any:
    """What a result has at a path; None if it has nothing there."""
    for key in path:
        if dataclasses.is_dataclass(run) and isinstance(key, str) and not isinstance(run, Mapping):
            run = getattr(run, key, None)
        elif isinstance(key, _Child):
            node = REGISTERED_CONTAINERS.get(type(run))
            run = None if node is None else list(node.flatten_fn(run)[0])[key.index]
        elif isinstance(run, tuple) and hasattr(run, str(key)):
            run = getattr(run, key)
        else:
            try:
                run = run[key]
            except (KeyError, IndexError, TypeError):
                return None
    return run


def _in_proportion(lengths: Sequence[int], items: Sequence[int]) -> bool:
    """Whether lists grow as the items do."""
    pairs = list(zip(lengths, items, strict=True))
    length, count = pairs[0]
    return length > 0 and all(length * other == one * count for one, other in pairs)


def _named(path: Path) -> str:
    return f"output {'.'.join(map(str, path))!r}" if path else "the output"


def _refusal(path: Path, why: str) -> FatalError:
    key = path[0] if path else None
    said = f"out={{{key!r}: ...}}" if isinstance(key, str) else "out="
    return FatalError(
        f"it is not known how {_named(path)} of the chunks becomes one: {why}. Say it with {said}: 'cat', "
        "('cat', dim), 'same', 'sum', 'mean', 'max', or a function of the list of parts"
    )
