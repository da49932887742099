"""Predicted pipelines: every model on every cluster, with several numbers of microbatches."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from rich.table import Table

from baechi.errors import PlacementError
from baechi.order.pipeline import TEXTBOOK
from baechi.records.cluster import Cluster
from baechi.records.graph import LayerGraph
from baechi.records.pipeline import Pipeline
from baechi.simulate.pipeline import costs_of
from baechi.verbs.planning import place
from baechi.verbs.profiling import profile
from benches.figures import table_of
from benches.models.clusters import FULL, HALF
from benches.pipeline.closer import closer_bound_s
from benches.pipeline.subjects import OPTIMIZER, clusters, subjects

NUMBERS = (1, 2, 4, 8, 16, 32)
"""Numbers of microbatches."""


@dataclass(frozen=True)
class Row:
    """A model on a cluster, with a number of microbatches.

    Args:
        model: its name.
        cluster: its name.
        microbatches: how many.
        gain: the step of the whole batch on one device, whatever its memory, over this one.
        over_bound: the step over a time that no order of the same stages can beat.
        over_textbook: the step over the fastest of GPipe, 1F1B and interleaved that fits, on the same stages.
        order: the rule that was chosen.
        placer: how the stages were cut.
    """

    model: str
    cluster: str
    microbatches: int
    gain: float | None
    over_bound: float = 1.0
    over_textbook: float = 1.0
    order: str = "does not fit"
    placer: str = ""


def simulated(*, quick: bool = False) -> Iterator[Row]:
    """Place and order every model by its cuts, without a search of placements.

    Args:
        quick: two small models on two devices.

    Yields:
        One row after the other.
    """
    numbers = (1, 4) if quick else NUMBERS
    both = Cluster((FULL, HALF))
    for model, (module, inputs) in subjects(quick=quick):
        graphs = {
            number: profile(
                module, inputs, cluster=both, training=True, source="estimate", microbatches=number
            )
            for number in numbers
        }
        for setting, cluster in clusters(quick=quick):
            alone = Cluster((replace(cluster.devices[0], memory_bytes=2**60),), link=cluster.link)
            one_s = place(graphs[1], alone, "single").timeline.makespan_s
            for number in numbers:
                yield _row(model, setting, graphs[number], cluster, number, one_s)


def table(rows: list[Row]) -> Table:
    """The rows as a table: gains by number of microbatches, and the worst of the other figures.

    Args:
        rows: what was predicted.
    """
    numbers = list(dict.fromkeys([row.microbatches for row in rows]))
    title = "Predicted pipelines: the step on one device over theirs, by number of microbatches"
    shown = table_of(title, ("model", "cluster"), (*map(str, numbers), "over the bound", "over textbook"))
    for model, cluster in dict.fromkeys([(row.model, row.cluster) for row in rows]):
        own = [row for row in rows if (row.model, row.cluster) == (model, cluster)]
        gains = ["-" if row.gain is None else f"{row.gain:.2f}" for row in own]
        worst = [max([row.over_bound for row in own]), max([row.over_textbook for row in own])]
        shown.add_row(model, cluster, *gains, *[f"{figure:.3f}" for figure in worst])
    return shown


def _row(model: str, setting: str, graph: LayerGraph, cluster: Cluster, number: int, one_s: float) -> Row:
    try:
        made = place(graph, cluster, microbatches=number, optimizer=OPTIMIZER, effort=0)
    except PlacementError:
        return Row(model, setting, number, None)
    step_s = made.timeline.makespan_s
    gain = one_s / step_s if step_s else 1.0
    if number == 1:
        return Row(model, setting, number, gain, order=made.rule, placer=made.plan.placer)
    bound_s = closer_bound_s(costs_of(made.plan), number, step_s)
    return Row(
        model,
        setting,
        number,
        gain,
        step_s / bound_s if bound_s else 1.0,
        step_s / _textbook_s(made),
        made.rule,
        made.plan.placer,
    )


def _textbook_s(made: Pipeline) -> float:
    """The step of the fastest order of the literature that fits; that of the choice if none does."""
    known = [tried.step_s for tried in made.tried if tried.rule in TEXTBOOK and tried.fits]
    return min(known, default=made.timeline.makespan_s)
