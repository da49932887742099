"""How much fits: the largest batch that trains on a cluster under each placement, by simulation."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache, partial

from rich.console import Console
from rich.table import Table

from baechi.errors import PlacementError, PlanError
from baechi.records.cluster import Cluster
from baechi.records.graph import LayerGraph
from baechi.records.plan import Plan
from baechi.verbs.plans import place, with_optimizer
from baechi.verbs.profile import profile
from benches.accelerate_map import accelerate_plan, is_installed
from benches.figures import Figures, table_of
from benches.models.clusters import FULL, HALF, Setting
from benches.models.small import Example, Maker, makers
from benches.quality import needed_bytes

PLACERS = ("single", "m-etf", "chain")
OPTIMIZER = "adam"
SETTING = Setting(4, "NVLink", equal=True, roomy=False)
USUAL = {
    "inception-v3": 32, "gnmt": 128, "transformer": 64, "bert-large": 16, "t5-large": 8, "clip-large": 32,
}  # fmt: skip
"""The batch for which the devices together have 1.8 times of what it needs on one."""

_QUICK = 4
_LARGEST = 4
_STEPS = 16
"""How finely the usual batch is divided."""

Make = Callable[[LayerGraph], Plan]


@dataclass(frozen=True)
class Row:
    """A model.

    Args:
        model: its name.
        usual: the batch for which its memory was chosen.
        largest: by placer, the largest batch that trains; 0 if none does.
    """

    model: str
    usual: int
    largest: Mapping[str, int]


def measure(*, quick: bool = False) -> Figures:
    """Search, and show. Each row is printed to the standard error when it is there.

    Args:
        quick: the last of the small models.
    """
    console, rows = Console(stderr=True), list[Row]()
    for row in batches(quick=quick):
        rows.append(row)
        console.print(f"{row.model}, {row.usual}: {dict(row.largest)}", highlight=False, soft_wrap=True)
    return Figures((table(rows),), [asdict(row) for row in rows])


def batches(*, quick: bool = False) -> Iterator[Row]:
    """Find the largest batches.

    Args:
        quick: the last of the small models.

    Yields:
        One row after the other. Accelerate's map is in it if it is installed.
    """
    for name, make in [*makers(quick=True)][-1:] if quick else makers():
        usual = _QUICK if quick else USUAL[name]
        graph_of = cache(partial(graph_for, make))
        usual_bytes = needed_bytes(graph_of(usual))
        cluster, step = SETTING.cluster(usual_bytes), max(1, usual // _STEPS)
        largest = {
            way: step * largest_that(partial(_places, graph_of, step, place_it), usual * _LARGEST // step)
            for way, place_it in _ways(make, cluster).items()
        }
        yield Row(name, usual, largest)


def table(rows: list[Row]) -> Table:
    """The rows as a table.

    Args:
        rows: what was found.
    """
    placers = list(rows[0].largest) if rows else []
    title = f"Largest batch that trains with {OPTIMIZER}, {SETTING}"
    shown = table_of(title, ("model",), ("usual", *placers))
    for row in rows:
        cells = [str(row.largest[placer] or "none") for placer in placers]
        shown.add_row(row.model, str(row.usual), *cells)
    return shown


def _ways(make: Maker, cluster: Cluster) -> dict[str, Make]:
    ways: dict[str, Make] = {
        way: partial(place, cluster=cluster, placer=way, effort=0) for way in (*PLACERS, "auto")
    }
    if is_installed():
        ways["accelerate"] = partial(accelerate_plan, make()[0], cluster=cluster)
    return ways


def graph_for(make: Callable[[int], Example], batch: int) -> LayerGraph:
    """The layer graph of a model in training with a batch.

    Args:
        make: makes the model and its inputs.
        batch: how many examples.
    """
    model, inputs = make(batch)
    graph = profile(model, inputs, cluster=Cluster((FULL, HALF)), training=True, source="estimate")
    return with_optimizer(graph, OPTIMIZER)


def largest_that(fits: Callable[[int], bool], most: int) -> int:
    """The largest number that fits, by bisection; 0 if 1 does not. What fits is taken to fit when smaller.

    Args:
        fits: whether a number does.
        most: the largest that is tried.
    """
    low, high = 0, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _places(graph_of: Callable[[int], LayerGraph], step: int, place_it: Make, steps: int) -> bool:
    try:
        place_it(graph_of(steps * step))
    except (PlacementError, PlanError):
        return False
    return True
