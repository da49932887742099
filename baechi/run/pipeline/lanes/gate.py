"""What a microbatch's thread asks before it goes on."""

from typing import Protocol


class Gate(Protocol):
    """Lets a microbatch's thread go on, run by run."""

    def is_open(self, run: int) -> bool:
        """Whether a run is granted.

        Args:
            run: its index.
        """

    def wait_for(self, run: int) -> None:
        """Return when a run is granted.

        Args:
            run: its index.
        """
