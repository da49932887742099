"""The calling thread runs the chunks itself: what it launches on devices runs beside it."""

from collections import deque
from collections.abc import Callable

from baechi.dispatch.replicas.replica import AbstractReplica, Launched
from baechi.dispatch.workers.abstract import AbstractWorkers, Done, Job


class InlineWorkers(AbstractWorkers):
    """Launches a chunk as it is handed over, and brings its results when something is waited for.

    Args:
        replica_at: gives a target's replica.
        now_s: the clock.
    """

    def __init__(self, replica_at: Callable[[str], AbstractReplica], now_s: Callable[[], float]) -> None:
        self._replica_at, self._now_s = replica_at, now_s
        self._launched: deque[tuple[Job, AbstractReplica, Launched | BaseException]] = deque()

    def submit(self, job: Job) -> None:
        replica = self._replica_at(job.target)
        try:
            launched = replica.launch(job.calls, divided=job.divided)
        except Exception as error:  # the model's code may raise anything
            self._launched.append((job, replica, error))  # no name here holds it: its traceback holds names
        else:
            self._launched.append((job, replica, launched))

    def begin(self) -> None:
        """All was launched as it was handed over."""

    def wait(self) -> list[Done]:
        job, replica, launched = self._launched.popleft()
        return [done_with(replica, job.number, launched)]

    def acknowledge(self) -> None:
        """Nothing waits for it."""

    def drain(self) -> list[Done]:
        return [done for _ in range(len(self._launched)) for done in self.wait()]

    def now_s(self) -> float:
        return self._now_s()

    def end(self) -> None:
        self._launched.clear()

    def abandon(self) -> None:
        self._launched.clear()


def done_with(replica: AbstractReplica, number: int, launched: Launched | BaseException) -> Done:
    """Bring the results of a chunk, or say why there are none."""
    if isinstance(launched, BaseException):
        return Done(number, error=launched, now_s=replica.now_s())
    try:
        results = replica.finish(launched)
    except Exception as error:  # what the device reports late
        return Done(number, error=error, now_s=replica.now_s())
    return Done(number, results, taken_s=launched.taken_s, now_s=replica.now_s())
