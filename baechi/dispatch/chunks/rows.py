"""Chunks of rows: tensors are sliced along their first dimension."""

import functools
import inspect
from collections.abc import Mapping
from typing import Any

import torch

from baechi.dispatch.chunks.abstract import AbstractCall, AbstractChunks, Arguments, Subject
from baechi.dispatch.chunks.arguments import check_argument, has_dim, lists_cut, sort_of
from baechi.dispatch.chunks.coupled_rows import refuse_coupled, training_flags
from baechi.dispatch.merge.alone import Alone
from baechi.dispatch.merge.growth import results_of, shapes_of
from baechi.dispatch.merge.joiner import Joiner, Shapes
from baechi.errors import FatalError
from baechi.run.step.loans import version_of
from baechi.torchlib.tensors.pytree import map_tensors, tensors_in


class Rows(AbstractChunks):
    """Divides inputs along one dimension.

    The largest extent of that dimension among the tensors is the number of rows. Tensors that have it are
    sliced. Those with an extent of 1, or without dimensions, go whole to each chunk, as broadcasting has it.
    Any other tensor is refused, unless `split` says what it is.

    Args:
        size: the most rows of a chunk; the scheduler says it unless given.
        dim: the dimension.
        split: by argument's name, the dimension that is sliced, or None for an argument that goes whole. A
            list of other things than tensors is sliced with 0.

    Raises:
        ValueError: `size` is below 1.
    """

    def __init__(
        self, size: int | None = None, dim: int = 0, *, split: Mapping[str, int | None] | None = None
    ) -> None:
        if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
            raise ValueError(f"size is {size!r}: a chunk has at least one row")
        self.size, self.dim, self.split = size, dim, dict(split or {})

    def open(self, subject: Subject, args: tuple[Any, ...], kwargs: dict[str, Any]) -> AbstractCall:
        return _RowsCall(self, subject, args, kwargs)

    def __repr__(self) -> str:
        return f"Rows(size={self.size}, dim={self.dim})"


class _RowsCall(AbstractCall):
    """A call whose arguments are sliced."""

    def __init__(self, chunks: Rows, subject: Subject, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._chunks, self._subject = chunks, subject
        self._args, self._kwargs = args, kwargs
        self._parts: dict[int, tuple[int, Any]] = {}
        self._names = positional_names(subject, len(args), named=bool(chunks.split))
        self.rows = max([*self._extents(), 0])
        self.total, self.most = max(1, self.rows), chunks.size
        self._checked = False
        self._found: list[tuple[torch.Tensor, int]] = []

    def _extents(self) -> list[int]:
        found = []
        for name, value in self._named():
            dim = self._chunks.split.get(name, self._chunks.dim)
            if dim is not None:
                found += [t.shape[dim] for t in tensors_in(value) if not t.is_nested and has_dim(t, dim)]
                if name in self._chunks.split and isinstance(value, list) and not found:
                    found.append(len(value))
        return found

    def _named(self) -> list[tuple[str, Any]]:
        return [*zip(self._names, self._args, strict=True), *self._kwargs.items()]

    def arguments(self, start: int, stop: int) -> list[Arguments]:
        if (start, stop) == (0, self.total):
            return [(self._args, self._kwargs)]
        if not self._checked:
            self._check()
            self._checked = True
        return [self._sliced(start, stop)]

    def _check(self) -> None:
        """Before the first slice: can everything be sliced, and how will results become one?"""
        unknown = sorted(set(self._chunks.split) - {name for name, _ in self._named()})
        if unknown:
            names = ", ".join(name for name, _ in self._named())
            raise FatalError(f"split names {', '.join(unknown)}: the arguments of this call are {names}")
        for name, value in self._named():
            dim = self._chunks.split.get(name, self._chunks.dim)
            if dim is not None:
                check_argument(name, value, dim, self.rows, said=name in self._chunks.split)
        self._found = [(tensor, version_of(tensor)) for tensor in tensors_in(self._args, self._kwargs)]
        if self._subject.made() is not None:
            refuse_coupled(self._subject.model())

    def _shapes(self) -> Shapes | None:
        """The results of two runs without values, for the rows of each."""
        step = max(1, self.rows // 2)
        sizes = step, self.rows if step != self.rows else 2 * step
        calls = [self._sliced(0, size) for size in sizes]
        found = shapes_of(self._subject.model(), calls, values=self._subject.runs_here)
        return None if found is None else Shapes((found[0], found[1]), sizes)

    def _sort(self) -> Any:
        """What a model may go by, besides values: calls of one sort are compared with a row alone once."""
        arguments = [(name, *sort_of(value, self.rows)) for name, value in self._named()]
        return training_flags(self._subject.model()), tuple(arguments)

    def _alone(self, chunk: int) -> list[Alone]:
        """What the model gives for the last and the first row of the first chunk; if it has one, for two."""
        if self._written() or self._sort() in self._subject.checked:
            return []
        model, results = self._subject.model(), []
        one, two = [(chunk - 1, 1), (0, 1)], [(0, 2)]
        for which in (one, two) if chunk > 2 else (one,) if chunk == 2 else (two,):
            calls = [self._sliced(row, row + rows) for row, rows in which]
            if self._subject.runs_here:
                results = results_of(model, calls)  # in turn: what a call leaves behind shows, too
            else:
                results = shapes_of(model, calls, values=False) or []
            if results:  # statistics of a batch refuse a single row
                return [Alone(result, *pair, chunk) for result, pair in zip(results, which, strict=True)]
        return []

    def _sliced(self, start: int, stop: int) -> Arguments:
        known: dict[tuple[int, int], torch.Tensor] = {}  # a tensor that is there twice is one slice
        sliced = [self._slice(name, value, (start, stop), known) for name, value in self._named()]
        count = len(self._args)
        return tuple(sliced[:count]), dict(zip(self._kwargs, sliced[count:], strict=True))

    def _slice(
        self, name: str, value: Any, items: tuple[int, int], known: dict[tuple[int, int], torch.Tensor]
    ) -> Any:
        start, stop = items
        dim = self._chunks.split.get(name, self._chunks.dim)
        if dim is None:
            return value
        if name in self._chunks.split:
            value = lists_cut(value, self.rows, start, stop)

        def cut(tensor: torch.Tensor) -> torch.Tensor:
            if not self._is_sliced(tensor, dim):
                return tensor
            key = id(tensor), dim
            if key not in known:
                known[key] = tensor.narrow(dim, start, stop - start)
            return known[key]

        return map_tensors(cut, value)

    def _is_sliced(self, tensor: torch.Tensor, dim: int) -> bool:
        return self.rows > 1 and has_dim(tensor, dim) and tensor.shape[dim] == self.rows

    def _written(self) -> list[torch.Tensor]:
        """Arguments that the model wrote in its chunks."""
        return [tensor for tensor, version in self._found if version_of(tensor) != version]

    def _refuse_written(self) -> None:
        """What goes whole to each chunk is written by each."""
        written = {id(tensor) for tensor in self._written()}
        for name, value in self._named() if written else ():
            dim = self._chunks.split.get(name, self._chunks.dim)
            for tensor in tensors_in(value):
                if id(tensor) in written and (dim is None or not self._is_sliced(tensor, dim)):
                    raise FatalError(
                        f"the model writes its argument {name!r}, which goes whole to each chunk, so it was "
                        "written by each: keep the whole batch in one chunk"
                    )

    def add(self, start: int, stop: int, results: list[Any]) -> None:
        self._parts[start] = (stop - start, results[0])

    def result(self) -> Any:
        parts = [self._parts[start] for start in sorted(self._parts)]
        self._parts = {}
        if len(parts) == 1:
            return parts[0][1]
        self._refuse_written()
        counts = [count for count, _ in parts]
        joiner = Joiner(counts, self._subject.out, self._shapes, functools.partial(self._alone, counts[0]))
        joined = joiner.join([part for _, part in parts])
        self._subject.checked.add(self._sort())
        return joined

    def label(self, start: int, stop: int) -> str:
        return f"rows {start} to {stop - 1} of {self.rows}" if self.rows > 1 else "the whole input"


def positional_names(subject: Subject, count: int, *, named: bool) -> list[str]:
    """The names of positional arguments: those of the model's `forward`, else their numbers."""
    model = subject.model() if named else subject.made()
    if model is None:
        return [str(i) for i in range(count)]
    try:
        parameters = list(inspect.signature(model.forward).parameters.values())
    except (TypeError, ValueError):  # a forward without a readable signature (script modules)
        parameters = []
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [parameter.name for parameter in parameters if parameter.kind in kinds]
    return [names[i] if i < len(names) else str(i) for i in range(count)]
