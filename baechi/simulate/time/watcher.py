"""Observers of the engine's events."""

from typing import Protocol

from baechi.simulate.time.transfers import Transfer


class Watcher(Protocol):
    """Is told of each event, in order of time."""

    def started(self, layer: int) -> None:
        """A layer starts."""

    def ended(self, layer: int) -> None:
        """A layer has ended."""

    def left(self, transfer: Transfer) -> None:
        """A transfer that travels leaves."""

    def arrived(self, transfer: Transfer) -> None:
        """A transfer that travels has arrived."""


class NullWatcher:
    """Ignores all events: if the host's program is known, bytes are counted after the phase."""

    def started(self, layer: int) -> None:
        """A layer starts."""

    def ended(self, layer: int) -> None:
        """A layer has ended."""

    def left(self, transfer: Transfer) -> None:
        """A transfer that travels leaves."""

    def arrived(self, transfer: Transfer) -> None:
        """A transfer that travels has arrived."""
