"""How what a call runs ends: without threads, and with nothing left of it if it failed."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from baechi.backend import AbstractBackend
from baechi.backend.sends import wait_for_all_sends
from baechi.run.pipeline.graph.gradients import Waiting
from baechi.run.pipeline.lanes.kept_apart import KeptApart
from baechi.run.pipeline.lanes.lane import Lane

Result = TypeVar("Result")


class Ending:
    """What a call's end takes care of.

    Args:
        backend: the devices.
        lanes: the threads.
        waiting: the gradients; the caller's are aside.
        kept: the world of each microbatch.
    """

    def __init__(
        self, backend: AbstractBackend, lanes: Sequence[Lane], waiting: Waiting, kept: KeptApart
    ) -> None:
        self._backend, self._lanes = backend, lanes
        self._waiting, self._kept = waiting, kept
        self._has_failed = False

    def after(self, run: Callable[[], Result]) -> Result:
        """Run something of the call, then end it.

        Args:
            run: what to run.

        Returns:
            What it returned.

        Raises:
            BaseException: what it raised, or a signal's handler meanwhile.
        """
        try:
            try:
                self._has_failed = True
                result = run()
                self._has_failed = False
                return result
            finally:
                self._end()
        finally:  # an exception of a signal handler may have come in the line above
            self._end()

    def end_lanes(self) -> None:
        """End the threads; they have ended when this returns."""
        for lane in self._lanes:
            lane.end()

    def _end(self) -> None:
        self.end_lanes()
        self._waiting.put_back()
        if self._has_failed:
            self._kept.put_back()
        wait_for_all_sends(self._backend)
