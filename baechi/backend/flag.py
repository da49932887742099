"""What a thread waits for."""

import threading
from typing import Protocol


class Flag(Protocol):
    """Down until a thread sets it. `threading.Event` is a flag."""

    def set(self) -> None:
        """Raise the flag: the waiting threads continue."""

    def is_set(self) -> bool:
        """Whether it is up."""

    def wait(self) -> bool:
        """Wait until it is up."""


class LockFlag:
    """A flag that one thread raises, once, and one waits for. (`threading.Event` takes ten times as long.)"""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def set(self) -> None:
        """Raise the flag: the waiting thread continues."""
        if self._lock.locked():
            self._lock.release()

    def is_set(self) -> bool:
        """Whether it is up."""
        return not self._lock.locked()

    def wait(self) -> bool:
        """Wait until it is up."""
        with self._lock:
            return True
