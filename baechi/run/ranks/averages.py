"""What replicas have in common: the mean of their gradients, and the buffers of the first one.

rank 0   F0 ... B0 ─▶ sum with rank 2                  each begins when the rank's own last backward is over,
rank 1   F1 ... B1 ─▶ sum with rank 3                  while other ranks of the replica still go backward
"""

from collections.abc import Iterator, Mapping, Sequence

import torch

from baechi.backend.ranks.devices import RankDevices
from baechi.errors import RankError
from baechi.run.ranks.schedule import Schedule

_BUCKET_BYTES = 25 << 20
"""Gradients are added up in rows of about so many bytes, as DistributedDataParallel does."""


class Averages:
    """The mean of gradients over replicas, in one step; without replicas it does nothing.

    Args:
        backend: the devices.
    """

    def __init__(self, backend: RankDevices) -> None:
        self._backend, self._wires = backend, backend.wires
        self._underway: list[tuple[int, torch.Tensor, list[tuple[int, torch.Tensor]]]] = []
        self._begun: set[int] = set()

    def begin(
        self,
        schedule: Schedule,
        leaves: Sequence[torch.Tensor],
        totals: Mapping[tuple[int, str], torch.Tensor],
    ) -> None:
        """This rank's last backward is over: begin with gradients to which no other rank adds."""
        own = self._backend.own
        if self._wires.replicas > 1:
            alone = [leaf for leaf in leaves if list(schedule.gradients.get(id(leaf), ())) == [own]]
            mine = [leaf for leaf in alone if self._backend.place_of(leaf) == own]
            self._add_up([(id(leaf), totals[id(leaf), own]) for leaf in mine])

    def finish(
        self, leaves: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor | None]
    ) -> list[torch.Tensor | None]:
        """Means in place of the gradients of this replica."""
        if self._wires.replicas == 1:
            return list(gradients)
        pairs = list(zip(leaves, gradients, strict=True))
        self._add_up(
            [(id(leaf), one) for leaf, one in pairs if one is not None and id(leaf) not in self._begun]
        )
        means = dict(self._means())
        return [means.get(id(leaf)) for leaf in leaves]

    def _add_up(self, named: Sequence[tuple[int, torch.Tensor]]) -> None:
        for bucket in _buckets(named):
            with torch.no_grad(), self._backend.at(self._backend.own, ""):
                flat = torch.cat([grad.detach().reshape(-1) for _, grad in bucket])
            self._underway.append((self._wires.begin_sum(flat), flat, bucket))
            self._begun.update(name for name, _ in bucket)

    def _means(self) -> Iterator[tuple[int, torch.Tensor]]:
        for work, flat, bucket in self._underway:
            self._wires.wait_for_sum(work)
            with torch.no_grad(), self._backend.at(self._backend.own, ""):
                flat.div_(self._wires.replicas)
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


def from_first_replica(backend: RankDevices, tensors: Sequence[torch.Tensor]) -> None:
    """Give weights or buffers that are here the values that the first replica has."""
    if backend.wires.replicas > 1:
        for tensor in tensors:
            with torch.no_grad():
                row = tensor.detach().contiguous()
                backend.wires.from_first_replica(row)
                if row.data_ptr() != tensor.data_ptr():
                    tensor.copy_(row)
