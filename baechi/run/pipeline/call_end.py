"""How what a call runs ends: without threads, and with nothing left of it if it failed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from baechi.backend import AbstractBackend
from baechi.backend.sends import wait_for_all_sends
from baechi.run.pipeline.graph.gradients import Waiting
from baechi.run.pipeline.lanes.kept_apart import KeptApart
from baechi.run.pipeline.lanes.lane import Lane

Result = TypeVar("Result")


@dataclass(eq=False)
class Ending:
    """What a call's end takes care of.

    Args:
        backend: the devices.
        lanes: the threads.
        waiting: the gradients; the caller's are aside.
        kept: the world of each microbatch.
        has_failed: whether what ran last has.
    """

    backend: AbstractBackend
    lanes: Sequence[Lane]
    waiting: Waiting
    kept: KeptApart
    has_failed: bool = False

    def after(self, run: Callable[[], Result]) -> Result:
        """Run something of the call, then end it."""
        try:
            try:
                self.has_failed = True
                result = run()
                self.has_failed = False
                return result
            finally:
                self._end()
        finally:  # an exception of a signal handler may have come in the line above
            self._end()

    def _end(self) -> None:
        for lane in self.lanes:
            lane.end()
        self.waiting.put_back()
        if self.has_failed:
            self.kept.put_back()
        wait_for_all_sends(self.backend)
