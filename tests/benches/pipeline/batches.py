"""How much fits: the largest batch that trains in microbatches, beside GPipe's and without, by simulation."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial

from rich.table import Table

from baechi.cost.recompute import recomputed
from baechi.errors import PlacementError
from baechi.place.recompute.candidates import candidate_sets
from baechi.records.device import excess_over
from baechi.records.graph import LayerGraph
from baechi.records.pipeline import Pipeline
from baechi.simulate.pipeline import ordered
from baechi.verbs.pipelines import pipelined
from baechi.verbs.plans import placed
from benches.batches import SETTING, graph_for, largest_that
from benches.figures import table_of
from benches.pipeline.emulated import MICROBATCHES
from benches.pipeline.subjects import OPTIMIZER, sized
from benches.quality import needed_bytes

_LARGEST = 16
"""So many times the usual batch is tried."""


@dataclass(frozen=True)
class Row:
    """A model.

    Args:
        model: its name.
        usual: the batch for which the devices together have 1.8 times of what it needs on one.
        largest: by way, the largest batch that trains, a multiple of the microbatches; 0 if none does.
    """

    model: str
    usual: int
    largest: Mapping[str, int]


def batches(*, models: Sequence[str] = ()) -> Iterator[Row]:
    """Find the largest batches, with placements by cuts alone.

    Args:
        models: only these.

    Yields:
        One row after the other.
    """
    for model, usual, make in sized(quick=False, only=models):
        fits = _Fits(partial(graph_for, make), usual)
        ways = {
            "without": fits.without,
            "gpipe": fits.gpipe,
            "chosen": fits.chosen,
            "chosen, run again": fits.run_again,
        }
        most = _LARGEST * usual // MICROBATCHES
        yield Row(model, usual, {way: MICROBATCHES * largest_that(ways[way], most) for way in ways})


def table(rows: Sequence[Row]) -> Table:
    """The rows as a table.

    Args:
        rows: what was found.
    """
    title = (
        f"Largest batch that trains with {OPTIMIZER}, {MICROBATCHES} microbatches, {SETTING}, by simulation"
    )
    shown = table_of(title, ("model",), ("usual", *(rows[0].largest if rows else ())))
    for row in rows:
        shown.add_row(row.model, str(row.usual), *[str(size or "none") for size in row.largest.values()])
    return shown


class _Fits:
    """Whether a batch fits, by the rows of each of its microbatches."""

    def __init__(self, graph_for: Callable[[int], LayerGraph], usual: int) -> None:
        self._graph_of = cache(graph_for)
        self._cluster = SETTING.cluster(needed_bytes(self._graph_of(usual)))
        self._place_one = partial(placed, cluster=self._cluster, placer="auto", optimizer=None, effort=0)
        self._chosen = cache(lambda rows: self._made(self._graph_of(rows)))

    def without(self, rows: int) -> bool:
        try:
            self._place_one(self._graph_of(MICROBATCHES * rows))
        except PlacementError:
            return False
        return True

    def chosen(self, rows: int) -> bool:
        return self._chosen(rows) is not None

    def gpipe(self, rows: int) -> bool:
        """On the chosen stages."""
        made = self._chosen(rows)
        if made is None:
            return False
        peaks = ordered(made.plan, MICROBATCHES, "gpipe").timeline.peak_bytes
        return not excess_over(self._cluster.devices, peaks)

    def run_again(self, rows: int) -> bool:
        """With all modules running again that save memory."""
        graph = self._graph_of(rows)
        names = [one.name for chosen in candidate_sets(graph)[:1] for one in chosen]
        return self._made(recomputed(graph, sorted(names))) is not None

    def _made(self, graph: LayerGraph) -> Pipeline | None:
        try:
            return pipelined({MICROBATCHES: graph}, self._cluster, self._place_one, effort=0, quick=True)
        except PlacementError:
            return None
