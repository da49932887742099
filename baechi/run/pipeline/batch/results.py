"""From what the microbatches returned to what the model returns for the whole batch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from baechi.backend import AbstractBackend
from baechi.backend.transfer import transfer
from baechi.run.pipeline.batch.join import AbstractJoiner, Unjoined
from baechi.run.pipeline.batch.judge import Verdict
from baechi.torchlib.tensors.pytree import map_tensors, tensors_in

Root = Callable[[int, torch.Tensor], Any]
"""From a microbatch and a tensor of it, where gradients of the tensor come in."""


@dataclass(frozen=True)
class Joint:
    """A tensor that was joined from those of the microbatches.

    Args:
        value: the joined tensor, without history.
        roots: by microbatch, where its gradient goes.
        dim: the dimension along which it is joined; None for a sum of numbers.
        shares: what each number counts.
    """

    value: torch.Tensor
    roots: tuple[Any, ...]
    dim: int | None
    shares: Sequence[Any] = ()


@dataclass(eq=False)
class Joiner(AbstractJoiner):
    """Joins tensors of microbatches.

    Args:
        apart: see `AbstractJoiner`.
        backend: the devices.
        verdict: what numbers count, and what is known of outputs.
        dims: the dimensions along which inputs were split, the usual one first; along these, outputs of which
            nothing is known are joined.
        home: where results go; None leaves them where they were made.
        root: asked for each tensor with a history; None if gradients need not come back.

    Attributes:
        joints: the tensors with a history. They have none in the result.
    """

    apart: Mapping[str, str]
    backend: AbstractBackend
    verdict: Verdict
    dims: Sequence[int]
    home: str | None
    root: Root | None
    joints: list[Joint] = field(default_factory=list, init=False)

    def join(self, tensors: Sequence[torch.Tensor], name: str) -> Any:
        """See `AbstractJoiner`."""
        if len(tensors) == 1:
            return self._made(tensors, 0 if tensors[0].dim() else None, (None, [1.0]))
        if len(set(map(id, tensors))) == 1:  # a weight or a buffer, as it is
            with torch.set_grad_enabled(self.root is not None):
                return _at_home(tensors[0], self.backend, self.home)
        if self.verdict.is_number(name, tensors):
            shares = self.verdict.shares_of(name)
            if shares is not None and (name not in self.verdict.found.alike or self._are_alike(tensors)):
                return self._made(tensors, None, (None, shares))
            return Unjoined(name, f"tensor of shape {tuple(tensors[0].shape)}")
        known = self.verdict.found.dims
        for dim in (known[name],) if name in known else self.dims:
            if dim is None:
                continue
            other: set[tuple[int, ...] | None] = set()
            for one, rows in zip(tensors, self.verdict.rows, strict=True):
                is_along = one.dim() > dim and one.shape[dim] == rows
                other.add((*one.shape[:dim], *one.shape[dim + 1 :]) if is_along else None)
            if len(other) == 1 and None not in other:
                return self._made(tensors, dim, (dim, ()))
        return Unjoined(name, f"tensor of shape {tuple(tensors[0].shape)}")

    def in_rows(self, lists: Sequence[list[Any]], name: str) -> Any:
        """See `AbstractJoiner`."""
        if self.verdict.found.dims.get(name) != 0:
            return None
        items = [item for each in lists for item in each]
        if self.root is not None and any(tensor.requires_grad for tensor in tensors_in(items)):
            return Unjoined(name, "list of tensors with gradients")
        return map_tensors(lambda tensor: _at_home(tensor.detach(), self.backend, self.home), items)

    def _are_alike(self, tensors: Sequence[torch.Tensor]) -> bool:
        place, parts = self._together(tensors)
        with self.backend.at(place, ""):
            return all(bool((one == parts[0]).all()) for one in parts[1:])

    def _made(
        self, tensors: Sequence[torch.Tensor], dim: int | None, back: tuple[int | None, Sequence[Any]]
    ) -> torch.Tensor:
        """One tensor along a dimension, or as a sum by shares; how its gradient goes back is noted."""
        place, parts = self._together(tensors)
        with self.backend.at(place, ""):
            value = torch.cat(parts, dim) if dim is not None else self._sum(place, parts, back[1])
        value = _at_home(value, self.backend, self.home)
        if self.root is None:
            return value
        roots, has_history = [], False
        for number, one in enumerate(tensors):
            roots.append(self.root(number, one) if one.requires_grad else None)
            has_history |= one.requires_grad
        if has_history:
            self.joints.append(Joint(value, tuple(roots), *back))
        return value

    def _sum(self, place: str, parts: Sequence[torch.Tensor], shares: Sequence[Any]) -> torch.Tensor:
        total: torch.Tensor | None = None
        for part, share in zip(parts, shares, strict=True):
            counted = _weighed(part, share_at(place, self.backend, share))
            total = counted if total is None else total + counted
        assert total is not None
        return total.to(parts[0].dtype)

    def _together(self, tensors: Sequence[torch.Tensor]) -> tuple[str, list[torch.Tensor]]:
        place, parts = self.backend.place_of(tensors[0]), []
        for one in tensors:
            part = one.detach()
            near = self.backend.place_of(part) == place
            parts.append(part if near else transfer(part, self.backend, place))
        return place, parts


def _at_home(value: torch.Tensor, backend: AbstractBackend, home: str | None) -> torch.Tensor:
    return value if home is None or backend.place_of(value) == home else transfer(value, backend, home)


def share_at(place: str, backend: AbstractBackend, share: Any) -> Any:
    """What a loss counts, on a device."""
    if isinstance(share, torch.Tensor) and backend.place_of(share) != place:
        return transfer(share, backend, place)
    return share


def hand_in(backend: AbstractBackend, joint: Joint, grad: torch.Tensor, rows: Sequence[int]) -> None:
    """Send the gradient of a joined tensor to where those of the microbatches' tensors come in."""
    if joint.dim is None:
        there = backend.place_of(grad)
        parts = [grad * share_at(there, backend, share) for share in joint.shares]
    else:
        parts = list(grad.split(list(rows), joint.dim))
    for root, part in zip(joint.roots, parts, strict=True):
        if root is not None:
            here = backend.place_of(part)
            sent = part if here == root.place else transfer(part, backend, root.place)
            root.incoming.append((sent, None))


def _weighed(loss: torch.Tensor, share: Any) -> torch.Tensor:
    """A mean over no labels is no number, and counts nothing."""
    if not isinstance(share, torch.Tensor):
        return loss * share if share else torch.zeros_like(loss)
    return torch.where(share == 0, 0.0, loss * share)
