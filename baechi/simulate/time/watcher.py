"""Who watches the engine."""

from typing import Protocol

from baechi.simulate.time.transfers import Transfer


class Watcher(Protocol):
    """Who is told what happens, in order of time."""

    def started(self, layer: int) -> None:
        """A layer starts."""

    def ended(self, layer: int) -> None:
        """A layer has ended."""

    def left(self, transfer: Transfer) -> None:
        """A transfer that travels leaves."""

    def arrived(self, transfer: Transfer) -> None:
        """A transfer that travels has arrived."""


class NullWatcher:
    """Watches nothing: where the host's program is known, bytes are counted afterwards."""

    def started(self, layer: int) -> None:
        """A layer starts."""

    def ended(self, layer: int) -> None:
        """A layer has ended."""

    def left(self, transfer: Transfer) -> None:
        """A transfer that travels leaves."""

    def arrived(self, transfer: Transfer) -> None:
        """A transfer that travels has arrived."""
