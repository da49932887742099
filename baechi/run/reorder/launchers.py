"""Which thread launches a layer that had to wait: the host's, or one of its own (the paper, section 1.3.2).

With threads, each waiting layer blocks a thread. At its turn the host hands control to that thread, and
continues when the layer has launched. So one thread launches at a time, and runs are reproducible.
Threads are reused within a step. Their number is not limited, since blocked threads could deadlock.

Autograd numbers nodes per thread, and runs backward in descending order of these numbers. So nodes made
in such a thread are renumbered as the host's: then backward is the launch order in reverse.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import torch

from baechi.backend import AbstractBackend
from baechi.run.reorder.deferred_values import Task
from baechi.torchlib.autograd_nodes import node_of
from baechi.torchlib.private.autograd import (
    next_sequence_number,
    sequence_number,
    set_sequence_number,
    unused_node,
)
from baechi.torchlib.tensors.pytree import tensors_in


class Launcher(Protocol):
    """Runs the tasks of a step, one at a time."""

    threads: int
    """How many threads the step has used."""

    def wait(self, task: Task) -> None:
        """Register a task that begins to wait."""

    def run(self, task: Task) -> Any:
        """Run a task; returns its result."""

    def end(self) -> None:
        """End the step: no task runs any more when this returns."""


class HostLauncher:
    """Runs each task in the calling thread."""

    threads = 0

    def wait(self, task: Task) -> None:
        pass

    def run(self, task: Task) -> Any:
        assert task.run is not None
        return task.run()

    def end(self) -> None:
        pass


class ThreadLauncher:
    """Runs each task in a thread of its own.

    Args:
        backend: starts threads, and lets them wait.
    """

    def __init__(self, backend: AbstractBackend) -> None:
        self.threads = 0
        self._backend = backend
        self._workers: dict[Task, _Worker] = {}
        self._idle: list[_Worker] = []
        self._all: list[_Worker] = []
        _use_up(_APART - next_sequence_number())

    def wait(self, task: Task) -> None:
        if self._idle:
            worker = self._idle.pop()
        else:
            worker = _Worker(self._backend)
            self._all.append(worker)  # before it starts: an interrupt in between leaves no thread behind
            worker.start(task.number)
            self.threads += 1
        self._workers[task] = worker

    def run(self, task: Task) -> Any:
        worker = self._workers.pop(task)
        self._idle.append(worker)
        result = worker.run(task)
        made = [node for node in map(node_of, tensors_in(result)) if node is not None]
        _number_as_ours(task.name, _nodes_of(made, worker.numbers), self._backend)
        return result

    def end(self) -> None:
        self._workers.clear()
        for worker in self._all:
            worker.end()
        self._idle.clear()


class _Worker:
    """A thread that runs the tasks it is given, one after the other.

    Args:
        backend: starts the thread.

    Attributes:
        numbers: of the autograd nodes that its last task made.
    """

    def __init__(self, backend: AbstractBackend) -> None:
        self.numbers = range(0)
        self._backend = backend
        self._task: Task | None = None
        self._result: Any = None
        self._error: BaseException | None = None
        self._go, self._done = backend.flag(), backend.flag()
        self._intra_op_threads = torch.get_num_threads()
        self._ended = False
        self._join: Callable[[], None] | None = None

    def start(self, position: int) -> None:
        """Start the thread."""
        self._join = self._backend.spawn(self._work, position)

    def run(self, task: Task) -> Any:
        """Run a task in this thread; returns its result, or raises its error."""
        self._hand_over(task)
        result, error, self._result, self._error = self._result, self._error, None, None
        if error is not None:
            raise error
        return result

    def end(self) -> None:
        """End the thread; it has ended when this returns."""
        if self._join is None:  # an interrupt came while it started: it ends as soon as it runs
            self._ended = True
            self._go.set()
            return
        while not self._ended:  # it may still be launching, if Ctrl-C interrupted the host's wait
            self._hand_over(None)
        self._join()

    def _hand_over(self, task: Task | None) -> None:
        self._task = task
        done, go = self._done, self._go
        go.set()
        done.wait()

    def _work(self) -> None:
        torch.set_num_threads(self._intra_op_threads)  # the setting is per thread
        while True:
            self._go.wait()
            if self._ended:
                return
            task, self._task = self._task, None
            done = self._done
            self._go, self._done = self._backend.flag(), self._backend.flag()
            if task is None:
                self._ended = True
                done.set()
                self._done.set()
                return
            first = next_sequence_number()
            torch.autocast_increment_nesting()  # else leaving autocast here clears the shared cache of casts
            try:
                if task.run is not None:
                    self._result = task.run()
            except BaseException as error:
                self._error = error
            finally:
                torch.autocast_decrement_nesting()
            self.numbers = range(first, next_sequence_number())
            del task
            done.set()


def _number_as_ours(name: str, made: Iterable[Any], backend: AbstractBackend) -> None:
    """Give another thread's autograd nodes the numbers they would have if this thread had made them."""
    nodes = sorted(made, key=sequence_number)
    if not nodes:
        return
    before = backend.enter_layer(name)
    first = next_sequence_number()
    for offset, node in enumerate(nodes):
        set_sequence_number(node, first + offset)
    _use_up(len(nodes))
    backend.enter_layer(before)


def _nodes_of(made: Iterable[Any], numbers: range) -> Iterator[Any]:
    """The autograd nodes with these numbers, found from a task's results downwards.

    The host's nodes have larger numbers, so nodes that existed before the task are not renumbered.
    """
    seen = set()
    waiting = list(made)
    while waiting:
        node = waiting.pop()
        if node not in seen and sequence_number(node) in numbers:
            seen.add(node)
            yield node
            waiting += [parent for parent, _ in node.next_functions if parent is not None]


_APART = 10_000
"""The host's first autograd sequence number in a step with threads, whose own numbers begin at 0."""


def _use_up(count: int) -> None:
    """Advance this thread's counter, so that its next node gets a number larger by `count`."""
    for _ in range(count):
        unused_node()
