"""Obeys a pipeline's list: forwards in their lanes, backwards part by part."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.autograd.graph import GradientEdge

from baechi.backend import AbstractBackend
from baechi.backend.transfer import receive, send, takes_two_nodes, transfer
from baechi.backend.way import Way
from baechi.errors import UNSPLIT_CURE, BaechiError, note_microbatch
from baechi.records.pipeline import Task
from baechi.records.pipeline.pipeline import Pipeline
from baechi.run.pipeline.graph.apart import go_to_cuts, go_to_weights
from baechi.run.pipeline.graph.gradients import Waiting, keep_apart
from baechi.run.pipeline.graph.part import Cut, Exit, Part
from baechi.run.pipeline.graph.parts import Parts
from baechi.run.pipeline.graph.seams import Seams
from baechi.run.pipeline.lanes.kept_apart import KeptApart
from baechi.run.pipeline.lanes.lane import ALL_RUNS, Lane
from baechi.torchlib.split_tensors.gradients import is_piece

_CURE = (
    "a later microbatch may have written what this one keeps for backward (a buffer that a layer reads after "
    f"it wrote it, memory that the model's code frees): assign new tensors instead, or {UNSPLIT_CURE}"
)

AHEAD = 3
"""So many tasks of a device may be issued and not over; see `simulate.pipeline.replay`."""


class Executor:
    """Runs tasks of microbatches.

    Args:
        backend: the devices.
        pipeline: the list, and the devices of its tasks.
        lanes: by microbatch, its thread.
        parts: by microbatch, what autograd records of it.
        kept: the world of each microbatch.
        waiting: gradients of weights, which others may join.
        inputs: inputs in parts, as far as they get gradients.
        seams: looks at the parts.
    """

    def __init__(
        self,
        backend: AbstractBackend,
        pipeline: Pipeline,
        lanes: Sequence[Lane],
        parts: Sequence[Parts],
        kept: KeptApart,
        waiting: Waiting,
        inputs: Sequence[torch.Tensor],
        seams: Seams,
    ) -> None:
        self._backend = backend
        self._units = pipeline.units
        self._names = pipeline.plan.cluster.names
        self._lanes = lanes
        self._parts = parts
        self._kept = kept
        self._waiting = waiting
        self._leaves = [*waiting.weights, *inputs]
        self._known = {id(leaf) for leaf in [*self._leaves, *[one.handle for one in parts]]}
        self._given_over = False
        self._seams = seams
        self._last_run = len(self._units.stage_of_run) - 1
        self._issued: dict[str, deque[Any]] = {name: deque() for name in self._names}

    def run(self, tasks: Iterable[Task], seed: Callable[[int], None]) -> None:
        """Run tasks in their order.

        Args:
            tasks: each after those that it depends on.
            seed: called with a microbatch before each of its backwards.
        """
        for task in tasks:
            place = self._names[self._units.device(task)]
            self._wait_for_older(place)
            self._backend.spend("task", place)
            with _noted(task.microbatch, task.phase):
                self._run(task, seed)
            stream = self._backend.compute_stream(place)
            self._issued[place].append(self._backend.record(stream))

    def _run(self, task: Task, seed: Callable[[int], None]) -> None:
        """Run a task. After an error it leaves the microbatch's world as it is: `Ending` puts all back."""
        microbatch, run = task.microbatch, task.unit if task.phase == "forward" else None
        if run is None:
            seed(microbatch)
        self._kept.enter(microbatch, run)
        if run is None:
            self._backward(microbatch, task.unit)
        else:
            self._lanes[microbatch].advance(ALL_RUNS if run == self._last_run else run)
        self._kept.leave(microbatch, run)

    def finish(self, microbatches: Iterable[int]) -> None:
        """Run the backwards of parts that no task stands for.

        Args:
            microbatches: of these.
        """
        for number in microbatches:
            parts = self._parts[number]
            with _noted(number, "backward"):
                for part in parts.all:
                    self._backward_of(parts, part, number)

    def _wait_for_older(self, place: str) -> None:
        """Wait until the device is at most a few tasks behind: what these will free is taken until then."""
        issued = self._issued[place]
        while len(issued) >= AHEAD:
            self._backend.wait_on_host(issued.popleft(), place)

    def _meets(self, leaf: torch.Tensor) -> None:
        """A leaf of neither model nor batch: in the call, its gradient waits as those of weights do."""
        if self._given_over or id(leaf) in self._known or is_piece(leaf):
            return
        self._known.add(id(leaf))
        self._leaves.append(leaf)
        self._waiting.take_in(leaf)

    def hand_over(self) -> None:
        """From now on no more leaves can join those whose gradients wait: autograd is told of them."""
        self._given_over = True

    def _backward(self, microbatch: int, stage: int) -> None:
        parts, units = self._parts[microbatch], self._units
        of_weights = stage >= units.whole
        part = parts.of_stage.get(units.weights_of[stage - units.whole] if of_weights else stage)
        if part is not None and of_weights:
            with self._backend.nodes_of(self._lanes[microbatch].log):
                go_to_weights(
                    self._backend, part.place, part.left, partial(keep_apart, self._backend, self._leaves)
                )
        elif part is not None:
            self._backward_of(parts, part, microbatch, in_two=stage in units.weights_of)

    def _backward_of(self, parts: Parts, part: Part, microbatch: int, *, in_two: bool = False) -> None:
        if part.is_done:
            return
        part.is_done = True
        for number in sorted(part.readers):
            self._backward_of(parts, parts.all[number], microbatch)
        self._seams.check(parts, part, _said, self._meets, always=microbatch == 0)
        exits, cuts = list(part.exits.values()), part.cuts
        part.exits, part.cuts = {}, []
        with self._backend.nodes_of(self._lanes[microbatch].log):
            edges, grads = given_at(self._backend, exits)
            if edges and in_two:
                part.left = go_to_cuts(edges, grads, parts.handle)
            elif edges:
                torch.autograd.backward(edges, grads)
            keep_apart(self._backend, self._leaves, [*grads, *[c.grad for c in cuts if c.grad is not None]])
            del edges, grads
            hand_on(self._backend, cuts)


def _said(part: Part) -> str:
    return f"part {part.number} of a microbatch, on {part.place},"


@contextmanager
def _noted(microbatch: int, phase: str) -> Iterator[None]:
    """Within this context, errors say which microbatch they happened in."""
    try:
        yield
    except BaseException as error:
        torchs = type(error) is RuntimeError and phase == "backward"  # not one of a full device
        note_microbatch(error, microbatch, _CURE if torchs else "")
        raise


def given_at(backend: AbstractBackend, exits: list[Exit]) -> tuple[list[GradientEdge], list[torch.Tensor]]:
    """Where backward begins, and with which gradients: those that came in at exits.

    Args:
        backend: the devices.
        exits: they are emptied.
    """
    edges: list[GradientEdge] = []
    grads: list[torch.Tensor] = []
    for exit in exits:
        for grad, way in exit.incoming:
            if way is not None:
                receive(grad, backend, exit.place, way.arrived)
            edges.append(exit.edge)
            grads.append(grad)
        exit.incoming.clear()
        exit.is_closed = True
    exits.clear()
    return edges, grads


def hand_on(backend: AbstractBackend, cuts: list[Cut]) -> None:
    """Send the gradients that arrived at cuts to the parts that made the tensors.

    Args:
        backend: the devices.
        cuts: they are emptied.
    """
    for cut in cuts:
        grad, cut.grad = cut.grad, None
        if grad is None:
            continue
        if cut.exit.is_closed:
            raise BaechiError(
                f"a gradient on {cut.place} comes after the backward that needs it, on {cut.exit.place}: the "
                f"model's code took a way that microbatches cannot follow: {UNSPLIT_CURE}"
            )
        backend.claim(grad, cut.place)  # autograd made it there, but the backend has no mark of it
        here, home = backend.place_of(grad), cut.exit.place
        if backend.session is None and here == backend.host:  # outside of an emulation nothing marks it
            here = cut.place
        way = None
        if here != home:
            grad, way = _sent(backend, grad, here, home)
        cut.exit.incoming.append((grad, way))
    cuts.clear()


def _sent(
    backend: AbstractBackend, grad: torch.Tensor, here: str, home: str
) -> tuple[torch.Tensor, Way | None]:
    with torch.no_grad():
        if not takes_two_nodes(grad):  # a sparse gradient
            return transfer(grad, backend, home), None
        way = Way(backend, here, home)
        return send(grad, way, "backward_node"), way
