"""The loop: chunks to targets, results back in order, and what happens when one fails.

    inputs ──▶ call 0 | call 1 ...          open calls, in order
                 │ rows 0-511, 512-4607         the scheduler says who takes how much
                 ▼
              jobs ──▶ workers ──▶ done ──▶ call.add      in any order
                                              └──▶ result, when the first open call is complete

After a failure no chunk starts; those that run end; then the failure is raised.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from baechi.dispatch.chunks.abstract import AbstractCall
from baechi.dispatch.failures import Kinds, failure_of, is_recoverable, mark
from baechi.dispatch.schedulers.abstract import AbstractScheduler, Left
from baechi.dispatch.workers.abstract import AbstractWorkers, Done, Job
from baechi.errors import FatalError, note


@dataclass(eq=False)
class _Piece:
    """Items of a call that no target has.

    Args:
        start, stop: which.
        attempts: how often they failed.
    """

    start: int
    stop: int
    attempts: int = 0


@dataclass(eq=False)
class _Open:
    """A call that is not complete."""

    call: AbstractCall
    pieces: deque[_Piece]
    missing: int


@dataclass(frozen=True)
class Rules:
    """What a call does about failures.

    Args:
        recoverable: the user's types of errors after which less work may succeed.
        retry: how often a chunk that failed so is tried again, in halves.
    """

    recoverable: Kinds = ()
    retry: int = 0


@dataclass(eq=False)
class Loop:
    """One run over inputs.

    Args:
        scheduler: says who takes what.
        workers: run it.
        rules: what happens after failures.
        advance: called as each chunk is complete.
    """

    scheduler: AbstractScheduler
    workers: AbstractWorkers
    rules: Rules
    advance: Callable[[], None] = lambda: None
    _open: deque[_Open] = field(default_factory=deque)
    _flying: dict[int, tuple[Job, _Open, _Piece]] = field(default_factory=dict)
    _errors: list[tuple[int, BaseException]] = field(default_factory=list)
    _count: int = 0
    _over: bool = False

    def results(self, calls: Iterable[AbstractCall]) -> Generator[Any, None, None]:
        """The result of each call, in order; no more calls are opened than keep the targets busy."""
        source = iter(calls)
        try:
            try:
                yield from self._deliver(source)
            except GeneratorExit:  # the caller wants no more results
                self._drain()
                raise
            except Exception as error:  # the caller's own part: the iterator, slicing, joining
                self._drain()
                self._errors.append((-1, error))
            else:
                self._drain()
            self.workers.end()
        except GeneratorExit:
            self.workers.end()
            raise
        except BaseException:  # Ctrl-C
            self.workers.abandon()
            raise
        finally:
            self._open.clear()
        self._raise_failures()

    def _deliver(self, source: Iterator[AbstractCall]) -> Iterator[Any]:
        while not self._errors:
            self._hand_out(source)
            self.workers.acknowledge()
            while self._open and not self._open[0].missing:
                yield self._open.popleft().call.result()
            if not self._flying and self._over and not self._open:
                return
            if self._flying:
                self._collect()

    def _hand_out(self, source: Iterator[AbstractCall]) -> None:
        """Give chunks to targets until none takes one."""
        while True:
            opened = self._with_work(source)
            if opened is None:
                return
            piece = opened.pieces[0]
            left = Left(
                piece.stop - piece.start, opened.call.total, opened.call.most, now_s=self.workers.now_s()
            )
            share = self.scheduler.schedule(left)
            if share is None:
                if not self._flying:
                    raise FatalError(
                        f"{self.scheduler!r} gives no target a chunk though nothing is in flight"
                    )
                return
            self._start(opened, piece, share.target, share.items)

    def _start(self, opened: _Open, piece: _Piece, target: str, items: int) -> None:
        taken = _Piece(piece.start, piece.start + items, piece.attempts)
        divided = items < opened.call.total
        job = Job(self._count, target, [], items, divided)
        self._flying[job.number] = job, opened, taken
        self._count += 1
        try:
            job.calls = opened.call.arguments(taken.start, taken.stop)
            self.workers.submit(job)
        except BaseException:
            del self._flying[job.number]
            self.scheduler.completed(target, items)
            raise
        if taken.stop == piece.stop:
            opened.pieces.popleft()
        else:
            piece.start = taken.stop

    def _with_work(self, source: Iterator[AbstractCall]) -> _Open | None:
        """The first open call of which something is left; a new one if there is room for it."""
        for opened in self._open:
            if opened.pieces:
                return opened
        if self._over or len(self._open) > self.scheduler.depth:
            return None
        self.workers.begin()
        call = next(source, None)
        if call is None:
            self._over = True
            return None
        self._open.append(_Open(call, deque([_Piece(0, call.total)]), call.total))
        return self._open[-1]

    def _collect(self) -> None:
        """Wait until something is done, and take it in."""
        for done in self.workers.wait():
            self._take(done)

    def _take(self, done: Done) -> None:
        # an exception of a signal's handler may have come while it was handed over
        if done.number not in self._flying:
            return
        job, opened, piece = self._flying.pop(done.number)
        taken_s = done.taken_s
        self.scheduler.completed(job.target, job.items, taken_s=taken_s, now_s=done.now_s)
        if done.not_begun:
            opened.pieces.appendleft(piece)
        elif done.error is None:
            opened.call.add(piece.start, piece.stop, done.results)
            opened.missing -= job.items
            self.advance()
        elif self._tries_again(done.error, piece):
            done.error.__traceback__ = None  # its frames hold what filled the device
            middle = (piece.start + piece.stop) // 2
            halves = [(piece.start, middle), (middle, piece.stop)]
            opened.pieces.extendleft(
                _Piece(start, stop, piece.attempts + 1) for start, stop in reversed(halves)
            )
        else:
            label = opened.call.label(piece.start, piece.stop)
            note(done.error, f"in chunk {job.number} ({label}) on {job.target}")
            mark(done.error, self.rules.recoverable)
            self._errors.append((job.number, done.error))

    def _tries_again(self, error: BaseException, piece: _Piece) -> bool:
        several = piece.stop - piece.start > 1
        again = several and piece.attempts < self.rules.retry and not self._errors
        return again and is_recoverable(error, self.rules.recoverable)

    def _drain(self) -> None:
        """Let what runs end; what it raises is noted."""
        self.rules = Rules(self.rules.recoverable)
        for done in self.workers.drain():
            self._take(done)

    def _raise_failures(self) -> None:
        if self._errors:
            errors = [error for _, error in sorted(self._errors, key=lambda entry: entry[0])]
            self._errors = []
            error = failure_of(errors, self._count)
            try:
                raise error
            finally:
                del error, errors  # else it would hold itself, and what filled a device, by its traceback
