"""What replicas have in common: the mean of their gradients.

rank 0   F0 ... B0 ─▶ sum with rank 2                  each begins when the rank's own last backward is over,
rank 1   F1 ... B1 ─▶ sum with rank 3                  while other ranks of the replica still go backward
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import torch

from baechi.backend import AbstractBackend
from baechi.errors import RankError

_BUCKET_BYTES = 25 << 20
"""Gradients are added up in rows of about so many bytes, as DistributedDataParallel does."""

_Named = list[tuple[int, torch.Tensor]]


class Averages:
    """The mean of gradients over replicas, in one step; without replicas it does nothing.

    Args:
        backend: the devices.
    """

    def __init__(self, backend: AbstractBackend) -> None:
        self._backend = backend
        self._underway: list[tuple[str, object, torch.Tensor, _Named]] = []
        self._begun: set[int] = set()

    def begin(
        self,
        leaves: Sequence[torch.Tensor],
        totals: Mapping[tuple[int, str], torch.Tensor],
        places_of: Callable[[int], Collection[str]],
    ) -> None:
        """The last backward of each device here is over: begin with gradients to which no other one adds.

        Args:
            leaves: what gets gradients.
            totals: these, by `id` of a leaf and by place.
            places_of: by `id` of a leaf, where parts of its gradient are made.
        """
        if self._backend.replicas == 1:
            return
        for place in self._backend.homes:
            alone = [leaf for leaf in leaves if list(places_of(id(leaf))) == [place]]
            mine = [leaf for leaf in alone if self._backend.place_of(leaf) == place]
            self._add_up(place, [(id(leaf), totals[id(leaf), place]) for leaf in mine])

    def finish(
        self, leaves: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor | None]
    ) -> list[torch.Tensor | None]:
        """Means in place of the gradients of this replica."""
        if self._backend.replicas == 1:
            return list(gradients)
        left: dict[str, _Named] = {place: [] for place in self._backend.homes}
        for leaf, one in zip(leaves, gradients, strict=True):
            if one is not None and id(leaf) not in self._begun:
                left[self._backend.place_of(leaf)].append((id(leaf), one))
        for place, named in left.items():
            self._add_up(place, named)
        means = dict(self._means())
        return [means.get(id(leaf)) for leaf in leaves]

    def _add_up(self, place: str, named: Sequence[tuple[int, torch.Tensor]]) -> None:
        for bucket in _buckets(named):
            with torch.no_grad(), self._backend.at(place, ""):
                flat = torch.cat([grad.detach().reshape(-1) for _, grad in bucket])
                begun = self._backend.begin_sum(flat, place)
            self._underway.append((place, begun, flat, bucket))
            self._begun.update(name for name, _ in bucket)

    def _means(self) -> Iterator[tuple[int, torch.Tensor]]:
        for place, begun, flat, bucket in self._underway:
            with torch.no_grad(), self._backend.at(place, ""):
                self._backend.end_sum(begun, place)
                flat.div_(self._backend.replicas)
                parts = flat.split([grad.numel() for _, grad in bucket])
            for (name, grad), part in zip(bucket, parts, strict=True):
                yield name, part.view(grad.shape)
        self._underway.clear()


def _buckets(named: Sequence[tuple[int, torch.Tensor]]) -> list[list[tuple[int, torch.Tensor]]]:
    """Gradients of one dtype each, in order."""
    found: list[list[tuple[int, torch.Tensor]]] = []
    latest: dict[torch.dtype, tuple[int, list[tuple[int, torch.Tensor]]]] = {}
    for name, grad in named:
        if grad.layout != torch.strided:
            raise RankError(
                f"a sparse gradient of shape {tuple(grad.shape)} has no mean over replicas: use sparse=False"
            )
        size, bucket = latest.get(grad.dtype, (_BUCKET_BYTES, []))
        if size >= _BUCKET_BYTES:
            size, bucket = 0, []
            found.append(bucket)
        bucket.append((name, grad))
        latest[grad.dtype] = size + grad.numel() * grad.element_size(), bucket
    return found
