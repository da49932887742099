"""How good placements are, and how long placing takes: `quality`, `known` and `speed` in one run."""

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from rich.table import Table

from baechi.verbs.plans import place
from benches import quality, speed
from benches.figures import Figures, table_of
from benches.models.known import problems


@dataclass(frozen=True)
class Row:
    """What `auto` made of a problem whose best known step is written down.

    Args:
        problem: its name.
        layers: how many.
        devices: how many.
        step_s: the predicted step of `auto`.
        known_s: the best step that is known; None if none is.
        chosen: what `auto` chose.
        place_s: seconds of processor time.
    """

    problem: str
    layers: int
    devices: int
    step_s: float
    known_s: float | None
    chosen: str
    place_s: float


def measure(*, quick: bool = False) -> Figures:
    """Run all.

    Args:
        quick: small models and graphs, to see whether it works.
    """
    steps, times = list(quality.quality(quick=quick)), speed.speed(quick=quick)
    known, by_travel = list(against_known(quick=quick)), speed.m_sct_by_travel(quick=quick)
    body = {
        "quality": [asdict(row) for row in steps],
        "known": [asdict(row) for row in known],
        "speed": [asdict(row) for row in times],
        "ratios": speed.ratios(times),
        "m-sct by transfers": by_travel,
    }
    tables = quality.table(steps), _known_table(known), speed.table(times), speed.travel_table(by_travel)
    return Figures(tables, body)


def against_known(*, quick: bool = False) -> Iterator[Row]:
    """Place each problem by `auto` at its default effort.

    Args:
        quick: the smallest layered graph alone, without a search.
    """
    for problem in problems(quick=quick):
        start_s = time.process_time()
        plan = place(problem.graph, problem.cluster, effort=0 if quick else 1)
        place_s = time.process_time() - start_s
        chosen = plan.placer.removeprefix("auto (").removesuffix(")")
        yield Row(
            problem.name,
            len(problem.graph),
            len(problem.cluster),
            plan.timeline.makespan_s,
            problem.known_s,
            chosen,
            place_s,
        )


def _known_table(rows: list[Row]) -> Table:
    shown = table_of(
        "Predicted step of auto beside the best known, ms",
        ("problem",),
        ("layers", "devices", "auto", "known", "ratio", "seconds", "chosen"),
    )
    for row in rows:
        known = "", ""
        if row.known_s is not None:
            known = f"{row.known_s * 1e3:.1f}", f"{row.step_s / row.known_s:.2f}"
        cells = f"{row.layers:,}", str(row.devices), f"{row.step_s * 1e3:.1f}", *known, f"{row.place_s:.1f}"
        shown.add_row(row.problem, *cells, row.chosen)
    return shown
