"""What all replicas take of the first one: weights at the beginning, and buffers that a step wrote."""

from collections.abc import Sequence

import torch

from baechi.backend.ranks.devices import RankDevices


def from_first_replica(backend: RankDevices, tensors: Sequence[torch.Tensor]) -> None:
    """Give weights or buffers that are here the values that the first replica has."""
    if backend.wires.replicas > 1:
        for tensor in tensors:
            with torch.no_grad():
                row = tensor.detach().contiguous()
                backend.wires.from_first_replica(row)
                if row.data_ptr() != tensor.data_ptr():
                    tensor.copy_(row)
