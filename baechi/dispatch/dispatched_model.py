"""The model over many inputs, called as the model is called."""

import weakref
from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from types import TracebackType
from typing import Any, Literal

import torch
from torch import nn

from baechi.dispatch.chunks.abstract import AbstractCall, AbstractChunks, Subject
from baechi.dispatch.estimate import estimate_paces
from baechi.dispatch.loop import Loop, Rules
from baechi.dispatch.merge.rules import Out, check_out
from baechi.dispatch.schedulers.abstract import AbstractScheduler
from baechi.dispatch.schedulers.hybrid import HybridScheduler
from baechi.dispatch.sessions import AbstractSession, LocalSession, ProcessSession
from baechi.dispatch.workers.recipe import made_by
from baechi.errors import BaechiError
from baechi.progress import progress
from baechi.records.inputs import Inputs
from baechi.run.state.thread_as_found import left_as_before

Workers = Literal["inline", "thread", "process"]
Model = nn.Module | Callable[[], nn.Module]

_END = object()


class Dispatched:
    """A model whose calls are divided into chunks; `baechi.dispatch` makes it.

    It is called as the model is, and has the model's attributes: `parameters()`, `eval()`, `state_dict()`.
    What is changed there is changed on every device at the next call. One call runs at a time.

    Args:
        model: the model, or a function that makes it.
        scheduler: who gets the next chunk.
        chunks: how inputs are divided.
        workers: who runs chunks.
        out: how results of chunks become one.
        rules: what happens after failures.
        timeout_s: of processes, how long a chunk may take.
    """

    def __init__(
        self,
        model: Model,
        scheduler: AbstractScheduler,
        chunks: AbstractChunks,
        workers: Workers,
        out: Out,
        rules: Rules,
        timeout_s: float | None = None,
    ) -> None:
        check_out(out)
        self._given, self._seed = model, torch.initial_seed()
        self._master = model if isinstance(model, nn.Module) else None
        self.scheduler, self.chunks = scheduler, chunks
        self._kind, self._rules, self._timeout_s = workers, rules, timeout_s
        self._subject = Subject(self._made, lambda: self._master, out, workers != "process")
        self._session: AbstractSession | None = None
        self._busy = self._closed = self._gave_up = False

    @property
    def model(self) -> nn.Module:
        """The master: the user's model, or what its function makes in this process.

        Worker processes have this model from then on, too.
        """
        self._made()
        if not isinstance(self._given, nn.Module):
            self._given = self._made()
            self._end_session()
        return self._given

    def _made(self) -> nn.Module:
        if self._master is None:
            assert not isinstance(self._given, nn.Module)
            with torch.random.fork_rng(devices=[]):  # the same weights as in worker processes
                torch.manual_seed(self._seed)
                self._master = made_by(self._given)
        return self._master

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model, chunk by chunk."""
        return left_as_before(partial(self._called, args, kwargs))

    forward = __call__

    def _called(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        session = self._begun()
        try:
            call = self.chunks.open(self._subject, args, kwargs)
            self._estimate(session, call)
            with session.step(), progress("dispatching") as advance:
                loop = Loop(self.scheduler, session.workers(), self._rules, advance)
                (result,) = loop.results([call])
                return result
        except BaseException:
            self._gave_up = True
            raise
        finally:
            try:
                self._end(session)
            finally:
                self._busy = False

    def stream(self, inputs: Iterable[Any]) -> Generator[Any, None, None]:
        """Call the model for each of many inputs, which may be more than memory holds.

        Inputs are taken one by one as targets have room, and each is divided as in a call.

        Args:
            inputs: of each call, what `baechi.distribute` takes as `inputs`: a tensor, a tuple of positional
                arguments, a dict of keyword arguments, or `baechi.Inputs`.

        Yields:
            The result of each, in order.

        Raises:
            AggregateError: several chunks failed.
            Exception: what the one chunk raised that failed.
        """
        session = self._begun()
        try:
            results = Loop(self.scheduler, session.workers(), self._rules).results(self._opened(inputs))
            try:
                while True:
                    with session.step():
                        result = next(results, _END)
                    if result is _END:
                        return
                    yield result
            finally:
                results.close()
        except BaseException:
            self._gave_up = True
            raise
        finally:
            try:
                self._end(session)
            finally:
                self._busy = False

    def sync(self) -> None:
        """Copy all weights and modules to all targets at the next call, whether or not a change is seen."""
        if self._session is not None:
            self._session.stale()

    def close(self) -> None:
        """End all workers. The next call is refused."""
        self._closed = True
        self._end_session()

    def __enter__(self) -> "Dispatched":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or "_master" not in vars(self):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.model, name)

    def __repr__(self) -> str:
        made = self._master if self._master is not None else self._given
        name = type(made).__name__ if isinstance(made, nn.Module) else getattr(made, "__name__", repr(made))
        return f"Dispatched({name}, {self.scheduler!r}, {self.chunks!r}, workers={self._kind!r})"

    def _begun(self) -> AbstractSession:
        """Begin a call: one at a time, since a scheduler and replicas serve one.

        (No context manager: an exception of a signal's handler in `contextlib` would leave it open.)
        """
        if self._closed:
            raise BaechiError("this dispatched model is closed: make another one with baechi.dispatch")
        if self._busy:
            raise BaechiError(
                "this dispatched model is called while a call of it runs: end that one (a `stream` by "
                "closing it), or make one for each thread"
            )
        self._reset()
        if not self.scheduler.idle:
            raise BaechiError(f"{self.scheduler!r} has chunks in flight: each dispatched model needs its own")
        self._busy = True
        try:
            if self._session is None:
                self._session = self._opened_session()
            self._session.begin()
            return self._session
        except BaseException:
            self._busy = False
            raise

    def _reset(self) -> None:
        """Whatever was in flight when a call failed is over, or was given up."""
        if self._gave_up:
            self.scheduler.reset()
            self._gave_up = False

    def _end(self, session: AbstractSession) -> None:
        self._reset()
        session.end()

    def _opened_session(self) -> AbstractSession:
        if self._kind != "process":
            return LocalSession(self._made(), self.scheduler.targets, threads=self._kind == "thread")
        session = ProcessSession(self._given, self.scheduler.targets, self._timeout_s)
        weakref.finalize(self, session.pool.close)
        return session

    def _end_session(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def _opened(self, inputs: Iterable[Any]) -> Iterator[AbstractCall]:
        for one in inputs:
            given = Inputs.of(one)
            yield self.chunks.open(self._subject, given.args, given.kwargs)

    def _estimate(self, session: AbstractSession, call: AbstractCall) -> None:
        scheduler = self.scheduler
        if isinstance(scheduler, HybridScheduler) and scheduler.asks_for_paces and session.is_local:
            estimate_paces(self._made(), scheduler, call)
