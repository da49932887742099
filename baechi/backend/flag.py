"""What a thread waits for."""

from typing import Protocol


class Flag(Protocol):
    """Down until a thread sets it. `threading.Event` is a flag."""

    def set(self) -> None:
        """Raise the flag: the waiting threads continue."""

    def is_set(self) -> bool:
        """Whether it is up."""

    def wait(self) -> bool:
        """Wait until it is up."""
