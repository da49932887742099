"""What is asked of the host's threads: on an emulated cluster they have logical clocks, and take turns."""

from abc import ABC, abstractmethod
from collections.abc import Callable

from baechi.backend.flag import Flag


class AbstractHostThreads(ABC):
    """Threads of the host, what they wait for, and their clock."""

    @abstractmethod
    def flag(self) -> Flag:
        """A new flag that threads wait for."""

    @abstractmethod
    def spawn(self, function: Callable[[], None], position: int) -> Callable[[], None]:
        """Run a function in a thread of its own, which ends with it.

        Args:
            function: what to run; it raises nothing.
            position: its place in the plan, for a backend that lets one thread run at a time.

        Returns:
            Waits until the thread is gone; to be called when the function is over, or about to be.
        """

    @abstractmethod
    def now_s(self) -> float:
        """The calling thread's clock, in seconds; devices may still have work."""

    @abstractmethod
    def give_way(self) -> None:
        """Where clocks are logical: let threads go first whose clocks are earlier."""
