"""Obeys a pipeline's list: forwards in their lanes, backwards part by part.

two devices, two microbatches; F: a lane goes on to its next run, B: one call of autograd's engine

cuda:0   F0  F1  ..  B0  ..  B1      time ─▶
cuda:1   ..  F0  B0  F1  B1  ..

F0 on cuda:0 ── exit ┆ cut ── F0 on cuda:1      a cut is no edge of autograd: the gradient that
B0 on cuda:0 ◀─ exit ┆ cut ◀─ B0 on cuda:1      arrives there is sent to the exit, for a later task
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

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
from baechi.torchlib.shards.gradients import is_shard

_CURE = (
    "a later microbatch may have written what this one keeps for backward (a buffer that a layer reads after "
    f"it wrote it, memory that the model's code frees): assign new tensors instead, or {UNSPLIT_CURE}"
)

AHEAD = 3
"""So many tasks of a device may be issued and not over; see `simulate.pipeline.replay`."""


_GRAD = attrgetter("grad")


class Microbatch(NamedTuple):
    """What runs one microbatch.

    Args:
        lane: its thread.
        parts: what autograd records of it.
    """

    lane: Lane
    parts: Parts


class Executor:
    """Runs tasks of microbatches.

    Args:
        backend: the devices.
        pipeline: the list, and the devices of its tasks.
        microbatches: their threads and graphs.
        kept: the world of each.
        waiting: gradients of weights, which others may join.
        seams: looks at the parts.

    Attributes:
        is_told: whether autograd was told of all leaves whose gradients wait: no more can join.
    """

    def __init__(
        self,
        backend: AbstractBackend,
        pipeline: Pipeline,
        microbatches: Sequence[Microbatch],
        kept: KeptApart,
        waiting: Waiting,
        seams: Seams,
    ) -> None:
        self.is_told = False
        self._backend, self._units = backend, pipeline.units
        self._names = pipeline.plan.cluster.names
        self._microbatches, self._kept, self._waiting, self._seams = microbatches, kept, waiting, seams
        self._leaves = [*waiting.weights, *waiting.inputs]
        self._known = set(map(id, self._leaves))
        for one in microbatches:
            self._known.add(id(one.parts.handle))
        self._last_run = len(self._units.stage_of_run) - 1
        self._issued: defaultdict[str, deque[Any]] = defaultdict(deque)

    def run(
        self, tasks: Iterable[Task], going_back: Iterable[int], seed: Callable[[int], None] | None = None
    ) -> None:
        """Run tasks in their order, then the backwards of parts that no task stands for.

        After an error a microbatch's world stays: `Ending` puts all back.
        """
        units = self._units
        for task in tasks:
            phase, number, unit = task
            stage = units.stage_of_run[unit] if phase == "forward" else unit
            place = self._names[units.device_of[stage]]
            issued = self._issued[place]
            while len(issued) >= AHEAD:  # what these free is taken until then
                self._backend.wait_on_host(issued.popleft(), place)
            self._backend.spend("task", place)
            try:
                if phase == "forward":
                    self._kept.enter(number, unit)
                    self._microbatches[number].lane.advance(ALL_RUNS if unit == self._last_run else unit)
                    self._kept.leave(number, unit)
                else:
                    if seed is not None:
                        seed(number)
                    self._kept.enter(number, None)
                    if unit >= units.whole:
                        self._go_to_weights(number, units.weights_of[unit - units.whole])
                    elif (part := self._microbatches[number].parts.of_stage.get(unit)) is not None:
                        self._backward_of(number, part, in_two=unit in units.weights_of)
                    self._kept.leave(number, None)
            except BaseException as error:
                _note(error, number, phase)
                raise
            issued.append(self._backend.record(self._backend.compute_stream(place)))
        for number in going_back:
            try:
                for part in self._microbatches[number].parts.all:
                    self._backward_of(number, part)
            except BaseException as error:
                _note(error, number, "backward")
                raise

    def _go_to_weights(self, number: int, stage: int) -> None:
        """Run what is left of a stage's backward: for its weights."""
        lane, parts = self._microbatches[number]
        part = parts.of_stage.get(stage)
        if part is not None:
            with self._backend.nodes_of(lane.log):
                after = partial(keep_apart, self._backend, self._leaves)
                go_to_weights(self._backend, part.place, part.left, after)

    def _backward_of(self, number: int, part: Part, *, in_two: bool = False) -> None:
        """Go backward through a part: from the gradients at its exits to its weights and its cuts."""
        if part.is_done:
            return
        part.is_done = True
        lane, parts = self._microbatches[number]
        for reader in sorted(part.readers):
            self._backward_of(number, parts.all[reader])
        self._seams.check(parts, part, self._known, self._meets, always=number == 0)
        exits, cuts = list(part.exits.values()), part.cuts
        part.exits, part.cuts = {}, []
        with self._backend.nodes_of(lane.log):
            edges, grads = given_at(self._backend, exits)
            if edges and in_two:
                part.left = go_to_cuts(edges, grads, parts.handle)
            elif edges:
                torch.autograd.backward(edges, grads)
            keep_apart(self._backend, self._leaves, (*grads, *map(_GRAD, cuts)))
            del edges, grads
            hand_on(self._backend, cuts)

    def _meets(self, leaf: torch.Tensor) -> None:
        """A leaf of neither model nor batch: in the call, its gradient waits as those of weights do."""
        if self.is_told or is_shard(leaf):
            return
        self._known.add(id(leaf))
        self._leaves.append(leaf)
        self._waiting.take_in(leaf)


def _note(error: BaseException, microbatch: int, phase: str) -> None:
    """Let an error say which microbatch it happened in."""
    torchs = type(error) is RuntimeError and phase == "backward"  # not one of a full device
    note_microbatch(error, microbatch, _CURE if torchs else "")


def given_at(backend: AbstractBackend, exits: list[Exit]) -> tuple[list[GradientEdge], list[torch.Tensor]]:
    """Where backward begins, and with which gradients: those that came in at exits."""
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
    """Send the gradients that arrived at cuts to the parts that made the tensors."""
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
        if here == backend.host and backend.session is None:  # outside of an emulation nothing marks it
            here = cut.place
        way = None
        if here != home:
            with torch.no_grad():
                if takes_two_nodes(grad):
                    way = Way(backend, here, home)
                    grad = send(grad, way, "backward_node")
                else:  # a sparse gradient
                    grad = transfer(grad, backend, home)
        cut.exit.incoming.append((grad, way))
    cuts.clear()
