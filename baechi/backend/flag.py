"""What a thread waits for."""

from typing import Protocol


class Flag(Protocol):
    """Down until somebody sets it; as `threading.Event`, which is one."""

    def set(self) -> None:
        """Raise it: whoever waits goes on."""

    def is_set(self) -> bool:
        """Whether it is up."""

    def wait(self) -> bool:
        """Wait until it is up."""
