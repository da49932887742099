"""Who watches the engine."""

from typing import Protocol

from baechi.simulate.time.parcels import Parcel


class Watcher(Protocol):
    """Who is told what happens, in order of time."""

    def started(self, layer: int) -> None:
        """A layer starts."""

    def ended(self, layer: int) -> None:
        """A layer has ended."""

    def left(self, parcel: Parcel) -> None:
        """A parcel that travels leaves."""

    def arrived(self, parcel: Parcel) -> None:
        """A parcel that travels has arrived."""


class Nobody:
    """Watches nothing: where the host's program is known, bytes are counted afterwards."""

    def started(self, layer: int) -> None:
        """A layer starts."""

    def ended(self, layer: int) -> None:
        """A layer has ended."""

    def left(self, parcel: Parcel) -> None:
        """A parcel that travels leaves."""

    def arrived(self, parcel: Parcel) -> None:
        """A parcel that travels has arrived."""
