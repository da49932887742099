"""A process for each target, spawned at its first chunk, that lives until it is closed.

    caller   ──job──▶ [reader thread ▶ inbox ▶ model]   one pipe a worker, bytes only
             ◀─done──

A worker that ends while a chunk is its own has died; one that has nothing to do may end, and the next chunk
starts another one.
"""

import multiprocessing
import time
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing import connection
from typing import Any

import torch

from baechi.dispatch.schedulers.targets import Target
from baechi.dispatch.workers import child
from baechi.dispatch.workers.abstract import AbstractWorkers, Done, Job
from baechi.dispatch.workers.parcels import packed, unpacked, unpacked_error
from baechi.dispatch.workers.recipe import Recipe
from baechi.errors import BaechiError, WorkerError, note
from baechi.run.state.caller_state import CallerState
from baechi.torchlib.tensors.pytree import map_tensors, tensors_in

_PATIENCE_S = 2.0
"""How long a worker has to end by itself before it is ended."""


class ProcessWorkers(AbstractWorkers):
    """Runs each target's chunks in a process of its own.

    Args:
        targets: where they run.
        recipe: what a worker makes its model from; asked when one is started.
        timeout_s: how long a chunk may take; None: as long as it takes.
    """

    def __init__(
        self, targets: Sequence[Target], recipe: Callable[[], Recipe], timeout_s: float | None = None
    ) -> None:
        self._targets = {target.name: target for target in targets}
        self._recipe, self._timeout_s = recipe, timeout_s
        self._workers: dict[str, _Process] = {}

    def submit(self, job: Job) -> None:
        worker = self._workers.get(job.target)
        if worker is None or worker.ended:
            worker = self._workers[job.target] = self._started(job.target)
        worker.give(job, CallerState.now())

    def _started(self, name: str) -> "_Process":
        threads = max(1, torch.get_num_threads() // len(self._targets))
        return _Process(self._targets[name], self._recipe(), threads, self._timeout_s)

    def tell(self, kind: str, content: Any = None) -> None:
        """Tell all workers that there are that something changed."""
        for worker in self._workers.values():
            if not worker.ended:
                worker.send(kind, -1, content)

    def begin(self) -> None:
        """Workers begin by themselves."""

    def wait(self) -> list[Done]:
        done: list[Done] = []
        while not done:
            busy = [worker for worker in self._workers.values() if worker.jobs]
            ends = [end for worker in busy for end in (worker.connection, worker.process.sentinel)]
            deadlines = [worker.deadline_s for worker in busy if worker.deadline_s is not None]
            patience_s = max(0.0, min(deadlines) - time.monotonic()) if deadlines else None
            connection.wait(ends, patience_s)
            for worker in busy:
                done += worker.news()
        return done

    def acknowledge(self) -> None:
        """Nothing waits for it."""

    def drain(self) -> list[Done]:
        done: list[Done] = []
        while any(worker.jobs for worker in self._workers.values()):
            done += self.wait()
        return done

    def now_s(self) -> float:
        return time.perf_counter()

    def end(self) -> None:
        """The workers stay for the next call."""

    def abandon(self) -> None:
        workers, self._workers = list(self._workers.values()), {}
        for worker in workers:
            worker.process.terminate()
        for worker in workers:
            worker.stop(0.5)

    def close(self) -> None:
        """End all workers, and wait until they are gone."""
        workers, self._workers = list(self._workers.values()), {}
        for worker in workers:
            worker.connection.close()  # a worker ends when its caller is gone
        for worker in workers:
            worker.stop(_PATIENCE_S)


class _Process:
    """One worker process, as its caller sees it."""

    def __init__(self, target: Target, recipe: Recipe, threads: int, timeout_s: float | None) -> None:
        self._name, self._timeout_s = target.name, timeout_s
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        arguments = (theirs, recipe, target.device, threads, target.name)
        self.process = context.Process(target=child.run, args=arguments, name=target.name, daemon=True)
        try:
            self.process.start()
        except RuntimeError as error:  # this very process is being spawned, and imports its main module
            raise BaechiError(
                "workers='process' was called while a worker imported the main module: put the calls of "
                "your script under `if __name__ == '__main__':`"
            ) from error
        theirs.close()  # so that its end is seen
        self._ready, self._held = False, deque[bytes]()
        self.jobs: deque[tuple[Job, str | torch.device | None]] = deque()
        self.deadline_s: float | None = None
        self._since_s = time.perf_counter()

    @property
    def ended(self) -> bool:
        """Whether it is over, or nothing can be sent to it any more."""
        return self.connection.closed or not self.process.is_alive()

    def give(self, job: Job, state: CallerState) -> None:
        """Hand a job over."""
        first = next(tensors_in(job.calls), None)
        parcel = packed(("job", job.number, (state, job.divided, job.calls)))
        self.jobs.append((job, None if first is None else first.device))
        if len(self.jobs) == 1:
            self._begin()
        self._send(parcel)

    def send(self, kind: str, number: int, content: Any) -> None:
        """Send a message."""
        self._send(packed((kind, number, content)))

    def _send(self, parcel: bytes) -> None:
        if not self._ready:  # it still imports torch: nothing reads there yet, and others can start meanwhile
            self._held.append(parcel)
            return
        try:
            self.connection.send_bytes(parcel)
        except (BrokenPipeError, ConnectionResetError):  # it is gone, as `news` will find
            pass

    def _begin(self) -> None:
        self._since_s = time.perf_counter()
        if self._timeout_s is not None and self._ready:
            self.deadline_s = time.monotonic() + self._timeout_s

    def news(self) -> list[Done]:
        """What became of its jobs since it was asked last."""
        done: list[Done] = []
        try:
            while self.jobs and self.connection.poll():
                done += self._received(*unpacked(self.connection.recv_bytes()))
        except (EOFError, ConnectionResetError, BrokenPipeError):
            return [*done, *self._death()]
        if self.jobs and not self.process.is_alive() and not self.connection.poll():
            return [*done, *self._death()]
        if self.jobs and self.deadline_s is not None and time.monotonic() > self.deadline_s:
            self.process.kill()
            message = (
                f"{self._name} took longer than the timeout of {self._timeout_s} s for a chunk, and was ended"
            )
            return [*done, *self._fails(WorkerError(message))]
        return done

    def _received(self, kind: str, number: int, content: Any) -> list[Done]:
        if kind == "ready":
            self._ready = True
            while self._held:
                self._send(self._held.popleft())
            self._begin()
            return []
        if number == -1:  # no model could be made
            error = unpacked_error(content)
            note(error, f"while {self._name} made its model")
            return self._fails(error)
        job, home = self.jobs.popleft()
        taken_s = time.perf_counter() - self._since_s
        self.deadline_s = None
        self._begin()
        if kind == "failed":
            return [Done(job.number, error=unpacked_error(content), now_s=time.perf_counter())]
        results = content
        if home is not None and torch.device(home).type != "cpu":
            results = map_tensors(lambda tensor: tensor.to(home), content)
        return [Done(job.number, results, taken_s=taken_s, now_s=time.perf_counter())]

    def _death(self) -> list[Done]:
        self.process.join(_PATIENCE_S)
        code = self.process.exitcode
        when = (
            ""
            if self._ready
            else " before it was ready (its main module has to be importable, see docs/dispatch.md)"
        )
        return self._fails(
            WorkerError(f"{self._name} ended with exit code {code}{when} while it had a chunk", code)
        )

    def _fails(self, error: BaseException) -> list[Done]:
        """Its first job failed; the others were not begun."""
        jobs, self.jobs = list(self.jobs), deque()
        self.stop(0.5)
        done = [Done(job.number, not_begun=True) for job, _ in jobs[1:]]
        return [Done(jobs[0][0].number, error=error, now_s=time.perf_counter()), *done] if jobs else []

    def stop(self, patience_s: float) -> None:
        """Wait for its end, and end it if that takes too long."""
        if not self.connection.closed:
            self.connection.close()
        self.process.join(patience_s)
        if self.process.is_alive():
            self.process.terminate()
            self.process.join(patience_s)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
