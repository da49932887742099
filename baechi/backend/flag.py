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
    """A flag for which one thread waits. (`threading.Event` takes ten times as long.)

    An exception of a signal handler may come between any two lines of it, in the main thread: whoever was
    interrupted may raise it again, or wait again. (In an Event a wake-up may get lost.)
    """

    __slots__ = ("_is_up", "_lock")

    def __init__(self) -> None:
        self._is_up = False
        self._lock = threading.Lock()  # free once the flag was raised, until the waiting thread has it
        self._lock.acquire()

    def set(self) -> None:
        """Raise the flag: the waiting thread continues."""
        self._is_up = True
        if self._lock.locked():
            self._lock.release()

    def clear(self) -> None:
        """Lower it, when no thread waits."""
        self._is_up = False
        self._lock.acquire(blocking=False)

    def is_set(self) -> bool:
        """Whether it is up."""
        return self._is_up

    def wait(self) -> bool:
        """Wait until it is up."""
        while not self._is_up:
            self._lock.acquire()
        return True
