"""The model over many inputs, called as the model is called."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Literal

from torch import nn

from baechi.dispatch.chunks.abstract import AbstractCall, AbstractChunks, Subject
from baechi.dispatch.failures import Kinds
from baechi.dispatch.loop import Loop, Rules
from baechi.dispatch.merge.rules import Out, check_out
from baechi.dispatch.replicas.replicas import Replicas
from baechi.dispatch.schedulers.abstract import AbstractScheduler, Left
from baechi.dispatch.workers.abstract import AbstractWorkers
from baechi.dispatch.workers.inline import InlineWorkers
from baechi.dispatch.workers.threads import ThreadWorkers
from baechi.errors import BaechiError
from baechi.progress import progress
from baechi.records.inputs import Inputs
from baechi.torchlib.tensors.pytree import tensors_in

Workers = Literal["inline", "thread", "process"]

_END = object()


class Dispatched:
    """A model whose calls are divided into chunks; see `baechi.dispatch`, which makes it.

    It is called as the model is, and has the model's attributes: `parameters()`, `eval()`, `state_dict()`. What
    is changed there is changed on every target at the next call.

    Args:
        model: the model, or a function that makes it.
        scheduler: who gets the next chunk.
        chunks: how inputs are divided.
        workers: who runs chunks.
        out: how results of chunks become one.
        rules: what happens after failures.
    """

    def __init__(
        self,
        model: nn.Module | Callable[[], nn.Module],
        scheduler: AbstractScheduler,
        chunks: AbstractChunks,
        workers: Workers,
        out: Out,
        rules: Rules,
    ) -> None:
        check_out(out)
        self._made = model
        self._master = model if isinstance(model, nn.Module) else None
        self.scheduler, self.chunks = scheduler, chunks
        self._kind, self._rules = workers, rules
        self._subject = Subject(lambda: self.model, out)
        self._replicas: Replicas | None = None
        self._busy = False
        self._closed = False

    @property
    def model(self) -> nn.Module:
        """The master: the user's model, or what the factory made in this process."""
        if self._master is None:
            assert not isinstance(self._made, nn.Module)
            self._master = self._made()
        return self._master

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model, chunk by chunk.

        Args:
            *args, **kwargs: as the model takes them.

        Returns:
            What the model returns for the whole input, on the input's device.

        Raises:
            AggregateError: several chunks failed.
            Exception: what the one chunk raised that failed.
        """
        with self._call() as replicas:
            call = self.chunks.open(self._subject, args, kwargs)
            if self._takes_all(replicas, call, (args, kwargs)):
                return self.model(*args, **kwargs)
            with replicas.backend.step(), progress("dispatching") as advance:
                loop = Loop(self.scheduler, self._workers(replicas), self._rules, advance)
                results = loop.results([call])
                result = next(results)
                for _ in results:  # the loop ends: its workers do
                    pass
                return result

    forward = __call__

    def stream(self, inputs: Iterable[Any]) -> Iterator[Any]:
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
        with self._call() as replicas:
            loop = Loop(self.scheduler, self._workers(replicas), self._rules)
            results = loop.results(self._opened(inputs))
            try:
                while True:
                    with replicas.backend.step():
                        result = next(results, _END)
                    if result is _END:
                        return
                    yield result
            finally:
                results.close()

    def sync(self) -> None:
        """Copy all weights and modules to all targets at the next call, whether or not a change is seen."""
        if self._replicas is not None:
            self._replicas.stale()

    def close(self) -> None:
        """End all workers. The next call is refused."""
        self._closed = True
        self._replicas = None

    def __enter__(self) -> "Dispatched":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("_made", "_master"):  # asked before there is a model
            raise AttributeError(name)
        return getattr(self.model, name)

    def __repr__(self) -> str:
        made = self._master if self._master is not None else self._made
        name = type(made).__name__ if isinstance(made, nn.Module) else getattr(made, "__name__", repr(made))
        return f"Dispatched({name}, {self.scheduler!r}, {self.chunks!r}, workers={self._kind!r})"

    def _call(self) -> AbstractContextManager[Replicas]:
        return _Call(self)

    def _opened(self, inputs: Iterable[Any]) -> Iterator[AbstractCall]:
        for one in inputs:
            given = Inputs.of(one)
            yield self.chunks.open(self._subject, given.args, given.kwargs)

    def _workers(self, replicas: Replicas) -> AbstractWorkers:
        if self._kind == "thread":
            return ThreadWorkers(replicas.at, replicas.backend)
        return InlineWorkers(replicas.at, replicas.backend.now_s)

    def _takes_all(self, replicas: Replicas, call: AbstractCall, given: Any) -> bool:
        """Whether one chunk is the whole call, and the model lies where its inputs lie: nothing to do, then."""
        share = self.scheduler.schedule(Left(call.total, call.total, call.most))
        if share is None:
            return False
        self.scheduler.completed(share.target, share.items)
        place = replicas.targets[share.target].device
        whole = share.items == call.total and replicas.is_model(share.target)
        return whole and all(replicas.backend.place_of(tensor) == place for tensor in tensors_in(given))


class _Call:
    """One call at a time: a scheduler, and replicas, serve one."""

    def __init__(self, dispatched: Dispatched) -> None:
        self._dispatched = dispatched

    def __enter__(self) -> Replicas:
        owner = self._dispatched
        if owner._closed:
            raise BaechiError("this dispatched model is closed: make another one with baechi.dispatch")
        if owner._busy:
            raise BaechiError(
                "this dispatched model is called while a call of it runs: end that one (a `stream` by closing it), "
                "or make one for each thread"
            )
        if not owner.scheduler.idle:
            raise BaechiError(
                f"{owner.scheduler!r} has chunks in flight: each dispatched model needs its own"
            )
        if owner._replicas is None or owner._replicas.model is not owner.model:
            owner._replicas = Replicas(owner.model, owner.scheduler.targets)
        owner._replicas.begin()
        owner._busy = True
        return owner._replicas

    def __exit__(self, *exception: object) -> None:
        self._dispatched._busy = False
