"""What a step in microbatches asks of devices, beside what every step does: see `run.pipeline`."""

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from typing import Any


class AbstractLanes(ABC):
    """Threads that share devices: random numbers of their own, and backwards of each other's nodes."""

    @abstractmethod
    def wait_on_host(self, event: Any, place: str) -> None:
        """Let the host wait for an event.

        Args:
            event: the event; None if there is nothing to wait for.
            place: the device that it is of.
        """

    @abstractmethod
    def seeded(self, seed: int) -> Any:
        """The state of the generators after `torch.manual_seed`; nothing changes.

        Args:
            seed: the seed.
        """

    @abstractmethod
    def random_state(self) -> Any:
        """The state of the generators of the host and of all devices."""

    @abstractmethod
    def set_random_state(self, state: Any) -> None:
        """Set the state of the generators of the host and of all devices.

        Args:
            state: what `random_state` or `seeded` returned.
        """

    @abstractmethod
    def node_log(self) -> Any:
        """What is known of the autograd nodes that this thread makes; for `nodes_of`."""

    @abstractmethod
    def nodes_of(self, log: Any) -> AbstractContextManager[Any]:
        """While this thread runs the backward of nodes that another thread made.

        Args:
            log: what `node_log` returned there.
        """
