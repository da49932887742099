"""How good placements are: the predicted training step of each placer, over models and clusters."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from rich.table import Table
from torch import nn

from baechi.errors import PlacementError, PlanError
from baechi.records.cluster import Cluster
from baechi.records.graph import LayerGraph
from baechi.records.plan import Plan
from baechi.verbs.plans import place, with_optimizer
from baechi.verbs.profile import profile
from benches.accelerate_map import accelerate_plan, is_installed
from benches.figures import table_of
from benches.models.clusters import FULL, HALF, SETTINGS, Setting
from benches.models.small import models

PLACERS = ("single", "m-topo", "m-etf", "m-sct", "chain", "even", "round-robin")
OPTIMIZER = "adam"

_UNBOUNDED = 10**18


@dataclass(frozen=True)
class Cell:
    """What a placer made of a model on a cluster.

    Args:
        step_s: the predicted step; None if it found no placement.
        note: why it found none, or how it was helped out when its own rule found no room.
    """

    step_s: float | None
    note: str = ""

    def __str__(self) -> str:
        if self.step_s is None:
            return "does not fit"
        return f"{self.step_s * 1e3:.1f}{'*' if self.note else ''}"


@dataclass(frozen=True)
class Row:
    """A model on a cluster.

    Args:
        model: its name.
        layers: how many nodes were placed.
        cluster: the setting.
        cells: by placer.
        choice: what `auto` chose.
    """

    model: str
    layers: int
    cluster: str
    cells: Mapping[str, Cell]
    choice: str


def quality(*, quick: bool = False) -> Iterator[Row]:
    """Place every model on every cluster by every placer.

    Args:
        quick: small models, the first and the last cluster, and no search.

    Yields:
        One row after the other. Accelerate's map is in it if it is installed.
    """
    for name, (model, inputs) in models(quick=quick):
        graph = profile(model, inputs, cluster=Cluster((FULL, HALF)), training=True, source="estimate")
        graph = with_optimizer(graph, OPTIMIZER)
        model_bytes = needed_bytes(graph)
        for setting in SETTINGS[:: len(SETTINGS) - 1] if quick else SETTINGS:
            yield _row(name, model, graph, setting, model_bytes, effort=0 if quick else 1)


def table(rows: list[Row]) -> Table:
    """The rows as a table.

    Args:
        rows: what was predicted.
    """
    placers = list(rows[0].cells) if rows else []
    shown = table_of(
        f"Predicted training step with {OPTIMIZER}, ms (* by its own rule no room: placed by memory)",
        ("model", "cluster"),
        (*placers, "chosen"),
    )
    for row in rows:
        cells = [str(row.cells[placer]) for placer in placers]
        shown.add_row(f"{row.model} ({row.layers})", row.cluster, *cells, row.choice)
    return shown


def _row(
    name: str, model: nn.Module, graph: LayerGraph, setting: Setting, model_bytes: int, *, effort: int
) -> Row:
    cluster = setting.cluster(model_bytes)
    ways: dict[str, Callable[[], Plan]] = {way: partial(place, graph, cluster, way) for way in PLACERS}
    if is_installed():
        ways["accelerate"] = partial(accelerate_plan, model, graph, cluster)
    cells = {way: _cell(make)[0] for way, make in ways.items()}
    cells["auto"], chosen = _cell(partial(place, graph, cluster, "auto", effort=effort))
    choice = chosen.removeprefix("auto (").removesuffix(")")
    return Row(name, sum(1 for _ in graph.placed()), str(setting), cells, choice)


def _cell(make: Callable[[], Plan]) -> tuple[Cell, str]:
    """The predicted step as a cell, and the name of the placer that made the plan."""
    try:
        plan = make()
    except (PlacementError, PlanError) as error:
        return Cell(None, str(error)), ""
    alone = len(plan.candidates) == 1  # of several candidates, the first note may concern another one
    return Cell(plan.timeline.makespan_s, plan.candidates[0].note if alone else ""), plan.placer


def needed_bytes(graph: LayerGraph) -> int:
    """What a model needs on one device.

    Args:
        graph: its layer graph, optimizer included.
    """
    alone = Cluster.uniform(1, memory=_UNBOUNDED, like=FULL.kind)
    return max(place(graph, alone, "single").timeline.peak_bytes.values())
