"""What the runtime asks of devices; it speaks to this only and cannot tell one kind from another."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager

import torch


class AbstractBackend(ABC):
    """The devices of a cluster as places where tensors lie.

    A place is a text: a device's name, or whatever else tensors lie on, such as the host.
    """

    names: Sequence[str]
    """The names of the cluster's devices."""

    @abstractmethod
    def place_of(self, tensor: torch.Tensor) -> str:
        """Where a tensor lies.

        Args:
            tensor: any tensor.

        Returns:
            A device's name, or another place.
        """

    @abstractmethod
    def copy(self, tensor: torch.Tensor, place: str) -> torch.Tensor:
        """Copy a tensor to a place, outside autograd.

        Args:
            tensor: any tensor.
            place: a device's name, or a place that `place_of` once returned.

        Returns:
            A new storage with the same layout.
        """

    @abstractmethod
    def is_free(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor belongs nowhere yet: made in the step, of nothing that has a place.

        Args:
            tensor: any tensor.
        """

    @abstractmethod
    def adopt(self, tensor: torch.Tensor, place: str) -> bool:
        """Let a tensor that belongs nowhere yet belong to its first user.

        Args:
            tensor: any tensor.
            place: a device's name.

        Returns:
            Whether it now lies there; False if it has to be copied.
        """

    @abstractmethod
    def move_weights(self, tensors: Sequence[torch.Tensor], place: str) -> list[torch.Tensor]:
        """Move weights to a place; those that share storage go on sharing it.

        Args:
            tensors: parameters and buffers with all that share storage with them.
            place: a device's name, or the host.

        Returns:
            For each tensor, the data it shall hold from now on.
        """

    @abstractmethod
    def checking(self) -> AbstractContextManager[None]:
        """While a step runs: an emulator watches that no operation mixes devices."""
