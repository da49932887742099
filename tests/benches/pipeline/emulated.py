"""Pipelines on the emulated cluster: the chosen order beside one device and other ways to run the step.

Each way is run dry: the runtime, streams, memory and the host are those of an emulated run, without values.
So models of full size take seconds. Gradients are handed over and added in these steps; the optimizer's step
is left out. The host is charged.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from rich.table import Table
from torch import nn

from baechi.errors import BaechiError
from baechi.order.pipeline import TEXTBOOK
from baechi.records.cluster import Cluster
from baechi.records.device import HostCosts
from baechi.records.pipeline import Pipeline
from baechi.records.plan import Plan
from baechi.simulate.pipeline import costs_of
from baechi.verbs.dry_run import dry_run
from baechi.verbs.pipelines import pipeline
from baechi.verbs.plans import place
from baechi.verbs.profile import profile
from benches.figures import table_of
from benches.pipeline.apart import with_weights_apart
from benches.pipeline.closer import closer_bound_s
from benches.pipeline.subjects import OPTIMIZER, clusters, subjects

USUAL = ("4 equal, NVLink",)
"""The clusters that are run unless others are asked for."""

MICROBATCHES = 8
"""How many."""

UNSPLIT = {"one device": "single", "auto": "auto"}
"""Ways without microbatches, each with its placer."""

APART = "weights apart"
"""The way with gradients of weights as tasks of their own, on the chosen placement."""

_ROOM_BYTES = 2**50  # enough for every model: these rows are about time


@dataclass(frozen=True)
class Row:
    """A model on a cluster, with a number of microbatches.

    Args:
        model: its name.
        cluster: its name.
        microbatches: how many.
        steps_s: seconds of an emulated step, by the way it was run; None where it could not. Of the orders of
            the literature, the one that is predicted to be fastest.
        predicted_s: the predicted step of the chosen order.
        bound_s: a time that no order of the same stages can beat.
        order: the rule that was chosen.
    """

    model: str
    cluster: str
    microbatches: int
    steps_s: Mapping[str, float | None]
    predicted_s: float
    bound_s: float
    order: str

    @property
    def gain_apart(self) -> float:
        """The chosen step over that with the backward of weights apart."""
        return 1 / self._over(APART) if self.steps_s.get(APART) else 1.0

    @property
    def gain(self) -> float:
        """The step on one device over the chosen one."""
        return self._over("one device")

    @property
    def over_unsplit(self) -> float:
        """The chosen step over that of `auto` without microbatches."""
        return 1 / self._over("auto")

    @property
    def over_textbook(self) -> float:
        """The chosen step over the fastest of GPipe, 1F1B and interleaved, on the same stages."""
        return max([1 / self._over(name) for name in TEXTBOOK if self.steps_s.get(name)], default=1.0)

    def __str__(self) -> str:
        return (
            f"{self.model}, {self.cluster}, {self.microbatches} microbatches: "
            f"{self.gain:.2f} times one device, {self.over_unsplit:.3f} of auto's step, "
            f"{self.over_textbook:.3f} of the literature's"
        )

    def _over(self, way: str) -> float:
        other_s, chosen_s = self.steps_s[way], self.steps_s["chosen"]
        return other_s / chosen_s if other_s and chosen_s else 1.0


def emulated(
    *, quick: bool = False, models: Sequence[str] = (), devices: Sequence[str] = ()
) -> Iterator[Row]:
    """Place, order and run every model.

    Args:
        quick: one small model on two devices, without a search.
        models: only these.
        devices: clusters whose names begin with one of these; four equal ones unless given.

    Yields:
        One row after the other.
    """
    number = 4 if quick else MICROBATCHES
    most = 1 if quick else None
    every = [(name, charged(one)) for name, one in clusters(quick=quick)]
    if devices:
        chosen = [(name, one) for name, one in every if name.startswith(tuple(devices))]
    else:
        chosen = [(name, one) for name, one in every if quick or name in USUAL]
    for model, (module, inputs) in islice(subjects(quick=quick, only=models), most):
        for setting, cluster in chosen[:most]:
            unsplit_s = _unsplit_s(module, inputs, cluster)
            effort = 0 if quick else 1
            yield _row(model, module, inputs, setting, cluster, number, unsplit_s, effort=effort)


def charged(cluster: Cluster) -> Cluster:
    """The same devices with room for every model, and a host that is charged what the runtime takes.

    Args:
        cluster: devices to plan for.
    """
    devices = tuple([replace(device, memory_bytes=_ROOM_BYTES) for device in cluster.devices])
    return replace(cluster, devices=devices, host=HostCosts.usual())


def table(rows: list[Row]) -> Table:
    """The rows as a table.

    Args:
        rows: what was measured.
    """
    found = {way for row in rows for way in row.steps_s}
    ways = [way for way in (*UNSPLIT, *TEXTBOOK, "chosen", APART) if way in found]
    shown = table_of(
        "Emulated steps in microbatches, ms; the host is charged",
        ("model", "cluster", "m", "order"),
        (*ways, "predicted", "bound", "gain", "over textbook", "gain apart"),
    )
    for row in rows:
        steps_s = [*[row.steps_s.get(way) for way in ways], row.predicted_s, row.bound_s]
        cells = ["-" if step_s is None else f"{step_s * 1e3:.1f}" for step_s in steps_s]
        figures = f"{row.gain:.2f}", f"{row.over_textbook:.3f}", f"{row.gain_apart:.3f}"
        shown.add_row(row.model, row.cluster, str(row.microbatches), row.order, *cells, *figures)
    return shown


def _unsplit_s(module: nn.Module, inputs: Any, cluster: Cluster) -> dict[str, float | None]:
    """The steps without microbatches: on one device, and as `auto` places them."""
    graph = profile(module, inputs, cluster=cluster, training=True, source="estimate")
    return {
        way: _step_s(module, inputs, place(graph, cluster, placer, optimizer=OPTIMIZER))
        for way, placer in UNSPLIT.items()
    }


def _row(
    model: str,
    module: nn.Module,
    inputs: Any,
    setting: str,
    cluster: Cluster,
    number: int,
    unsplit_s: Mapping[str, float | None],
    *,
    effort: int,
) -> Row:
    graph = profile(module, inputs, cluster=cluster, training=True, source="estimate", microbatches=number)
    made = place(graph, cluster, microbatches=number, optimizer=OPTIMIZER, effort=effort)
    known = {name: pipeline(made.plan, number, name) for name in TEXTBOOK}
    best = min(known, key=lambda name: known[name].timeline.makespan_s)  # the others are known to be slower
    ways = {best: known[best], "chosen": made, APART: with_weights_apart(made)}
    steps_s = {way: _step_s(module, inputs, one) for way, one in ways.items()}
    bound_s = closer_bound_s(costs_of(made.plan), number, made.timeline.makespan_s)
    all_s = {**unsplit_s, **steps_s}
    return Row(model, setting, number, all_s, made.timeline.makespan_s, bound_s, made.rule)


def _step_s(module: nn.Module, inputs: Any, plan: Plan | Pipeline) -> float | None:
    try:
        return dry_run(module, inputs, plan).makespan_s
    except BaechiError:
        return None
