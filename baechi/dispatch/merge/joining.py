"""Joining the parts of an output, tensor by tensor, through whatever holds them."""

import copy
import dataclasses
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

import torch

from baechi.dispatch.merge.growth import growing_dim
from baechi.dispatch.merge.rules import Join, below, is_for_parts, join_of
from baechi.errors import FatalError
from baechi.torchlib.private.tensors import REGISTERED_CONTAINERS


class Joiner:
    """Joins the results of chunks.

    Args:
        items: how many items each chunk had.
        out: what the user said.
        shapes: the results of two runs without values, and the items of each; None if the model does not run
            so.
    """

    def __init__(
        self, items: Sequence[int], out: Any, shapes: tuple[tuple[Any, Any], tuple[int, int]] | None
    ) -> None:
        self._items = list(items)
        self._out = out
        self._shapes = shapes

    def join(self, parts: list[Any]) -> Any:
        """The parts as one.

        Args:
            parts: the results, in the order of the input.

        Raises:
            FatalError: it is not known how, or a rule does not fit; the message names the output.
        """
        runs = self._shapes[0] if self._shapes is not None else None
        return self._join("", parts, runs, self._out)

    def _join(self, path: str, parts: list[Any], runs: Any, out: Any) -> Any:
        first = parts[0]
        if callable(out) and not is_for_parts(out):
            return out(parts)
        if any(type(part) is not type(first) for part in parts):
            kinds = ", ".join(sorted({type(part).__name__ for part in parts}))
            raise _refusal(path, f"it is of another type in other chunks ({kinds})")
        if isinstance(first, torch.Tensor):
            return self._tensors(path, parts, runs, join_of(out, _named(path)))
        if isinstance(first, Mapping):
            return self._mappings(path, parts, runs, out)
        if isinstance(first, (list, tuple)):
            return self._sequences(path, parts, runs, out)
        if dataclasses.is_dataclass(first) and not isinstance(first, type):
            return self._dataclasses(path, parts, runs, out)
        if type(first) in REGISTERED_CONTAINERS:
            return self._registered(path, parts, runs, out)
        return self._values(path, parts, join_of(out, _named(path)))

    def _values(self, path: str, parts: list[Any], rule: Join) -> Any:
        first = parts[0]
        if isinstance(first, (int, float)) and not isinstance(first, bool) and rule.name in _OF_NUMBERS:
            tensors: list[torch.Tensor] = [torch.tensor(part, dtype=torch.float64) for part in parts]
            return type(first)(self._reduced(rule.name, tensors).item())
        if all(part is first or _equal(part, first) for part in parts[1:]):
            return first
        raise _refusal(path, f"it is a {type(first).__name__}, and not the same in all chunks")

    def _tensors(self, path: str, parts: list[torch.Tensor], runs: Any, rule: Join) -> torch.Tensor:
        if rule.name == "cat" and rule.dim is not None:
            return self._cat(path, parts, rule.dim)
        if rule.name in _OF_NUMBERS:
            if any(part.shape != parts[0].shape for part in parts):
                shapes = ", ".join(str(tuple(part.shape)) for part in parts[:4])
                raise _refusal(path, f"{rule.name!r} needs one shape, and it has {shapes}")
            return self._reduced(rule.name, parts)
        dim = None if rule.name == "same" else self._growing(path, parts, runs)
        if dim is not None:
            return self._cat(path, parts, dim)
        if rule.name == "cat":
            raise _refusal(path, f"no dimension of {tuple(parts[0].shape)} grows with the items")
        if all(_same(part, parts[0]) for part in parts[1:]):
            return parts[0]
        raise _refusal(path, "no dimension of it grows with the items, and chunks have other values")

    def _growing(self, path: str, parts: list[torch.Tensor], runs: Any) -> int | None:
        """The dimension to put parts together along."""
        if runs is not None and all(isinstance(run, torch.Tensor) for run in runs):
            assert self._shapes is not None
            try:
                return growing_dim(runs[0].shape, runs[1].shape, self._shapes[1])
            except ValueError as error:
                raise _refusal(path, str(error)) from error
        # the model does not run without values: the chunks themselves tell, if they differ in size
        known = {part.shape: count for part, count in zip(parts, self._items, strict=True)}
        by_count = list({count: shape for shape, count in known.items()}.items())
        if len(by_count) > 1:
            (one, first), (other, second) = by_count[0], by_count[-1]
            try:
                return growing_dim(first, second, (one, other))
            except ValueError as error:
                raise _refusal(path, str(error)) from error
        same = [dim for dim, size in enumerate(parts[0].shape) if size == self._items[0]]
        if not same:
            return None
        if len(same) > 1:
            raise _refusal(path, f"dimensions {same} of {tuple(parts[0].shape)} may be that of the items")
        return same[0]

    def _cat(self, path: str, parts: list[torch.Tensor], dim: int) -> torch.Tensor:
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

    def _sequences(self, path: str, parts: list[Any], runs: Any, out: Any) -> Any:
        first = parts[0]
        rule = None if is_for_parts(out) else join_of(out, _named(path))
        if isinstance(first, list) and self._is_list_of_items(parts, runs, rule):
            return [item for part in parts for item in part]
        if any(len(part) != len(first) for part in parts):
            lengths = ", ".join(str(len(part)) for part in parts[:4])
            raise _refusal(path, f"it has another length in other chunks ({lengths})")
        names = getattr(first, "_fields", None) or range(len(first))
        joined = [
            self._join(_under(path, name), [part[i] for part in parts], _inside(runs, i), below(out, name, i))
            for i, name in enumerate(names)
        ]
        return type(first)(*joined) if hasattr(first, "_fields") else type(first)(joined)

    def _is_list_of_items(self, parts: list[Any], runs: Any, rule: Join | None) -> bool:
        """Whether a list has an entry (or several) for each item, as detectors return it."""
        if rule is not None and rule.name == "same":
            return False
        if runs is not None and all(isinstance(run, list) for run in runs):
            assert self._shapes is not None
            one, other = self._shapes[1]
            return len(runs[0]) != len(runs[1]) and len(runs[0]) * other == len(runs[1]) * one
        counts = zip(parts, self._items, strict=True)
        return all(len(part) == count for part, count in counts) and len(set(self._items)) > 1

    def _mappings(self, path: str, parts: list[Any], runs: Any, out: Any) -> Any:
        first = parts[0]
        if any(list(part) != list(first) for part in parts):
            raise _refusal(path, "its keys are other ones in other chunks")
        joined = {
            key: self._join(
                _under(path, key), [part[key] for part in parts], _inside(runs, key), below(out, key, i)
            )
            for i, key in enumerate(first)
        }
        if not isinstance(first, MutableMapping):
            return joined
        result = copy.copy(first)
        for key, value in joined.items():
            result[key] = value
        return result

    def _dataclasses(self, path: str, parts: list[Any], runs: Any, out: Any) -> Any:
        result = copy.copy(parts[0])
        for i, field in enumerate(dataclasses.fields(result)):
            name = field.name
            if hasattr(result, name):
                of_parts = [getattr(part, name) for part in parts]
                seen = None if runs is None else [getattr(run, name, None) for run in runs]
                joined = self._join(_under(path, name), of_parts, seen, below(out, name, i))
                object.__setattr__(result, name, joined)  # frozen ones, too
        return result

    def _registered(self, path: str, parts: list[Any], runs: Any, out: Any) -> Any:
        node = REGISTERED_CONTAINERS[type(parts[0])]
        flat = [node.flatten_fn(part) for part in parts]
        seen = None
        if runs is not None and all(type(run) is type(parts[0]) for run in runs):
            seen = [list(node.flatten_fn(run)[0]) for run in runs]
        joined = self._join(path, [list(children) for children, _ in flat], seen, out)
        return node.unflatten_fn(joined, flat[0][1])


_OF_NUMBERS = ("sum", "mean", "max")


def _inside(runs: Any, key: Any) -> Any:
    """What two runs without values have at a key; None if one has nothing there."""
    if runs is None:
        return None
    try:
        return [run[key] for run in runs]
    except (KeyError, IndexError, TypeError):
        return None


def _equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other) or (one != one and other != other)
    except (RuntimeError, ValueError, TypeError):  # it holds tensors or arrays
        return False


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are equal bit for bit (NaN is NaN)."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one is other:
        return True
    one, other = one.detach().cpu(), other.detach().cpu()
    if one.is_floating_point() or one.is_complex():
        return bool(torch.equal(one, other)) or bool(
            torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)
        )
    return bool(torch.equal(one, other))


def _under(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else str(key)


def _named(path: str) -> str:
    return f"output {path!r}" if path else "the output"


def _refusal(path: str, why: str) -> FatalError:
    key = path.split(".")[0]
    said = f"out={{{key!r}: ...}}" if key and not key.isdigit() else "out="
    return FatalError(
        f"it is not known how {_named(path)} of the chunks becomes one: {why}. Say it with {said}: 'cat', "
        "('cat', dim), 'same', 'sum', 'mean', 'max', or a function of the list of parts"
    )
