"""What `distribute` costs, beside a plain forward and backward of the same model, and where it goes.

A ratio in one run, of seconds of processor time, with one thread, so that others on the machine do not
count. The run under watch is timed once more by itself, so are placers without a search; the seconds of
`distribute` are those of its three stages, each once, after torch has seen the model's operators.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import islice
from statistics import median
from typing import Any

import torch
from rich.table import Table
from torch import nn

from baechi.capture.watch.run import run_once
from baechi.records.cluster import Cluster
from baechi.records.inputs import Inputs
from baechi.torchlib.losses import losses_among
from baechi.verbs.distribute import assign
from baechi.verbs.plans import place
from baechi.verbs.profile import profile
from benches.figures import Figures, table_of
from benches.models.families import families

_DEVICES = 2
_PLAIN_TIMES = 5


@dataclass(frozen=True)
class Row:
    """A model.

    Args:
        model: its name.
        deep: whether it is one of the deep ones.
        aside: whether it was set aside; see `families`.
        layers: how many nodes were placed.
        plain_s: a forward and backward of the plain model, the least of a few.
        run_s: of `profile`, the run under watch.
        graph_s: of `profile`, all else: graph and costs.
        placers_s: of `place`, the placers and their simulations.
        search_s: of `place`, all else.
        assign_s: of `assign`, all.
    """

    model: str
    deep: bool
    aside: bool
    layers: int
    plain_s: float
    run_s: float
    graph_s: float
    placers_s: float
    search_s: float
    assign_s: float

    @property
    def distribute_s(self) -> float:
        """All stages."""
        return sum(self.parts_s)

    @property
    def parts_s(self) -> tuple[float, ...]:
        """The stages, one after the other."""
        return self.run_s, self.graph_s, self.placers_s, self.search_s, self.assign_s

    @property
    def ratio(self) -> float:
        """How many times a plain forward and backward it takes."""
        return self.distribute_s / self.plain_s


def measure(*, quick: bool = False) -> Figures:
    """Measure, and show.

    Args:
        quick: one small model of each list.
    """
    rows = costs(quick=quick)
    return Figures((table(rows),), [asdict(row) | {"ratio": row.ratio} for row in rows])


def costs(*, quick: bool = False) -> list[Row]:
    """Distribute all models of the families for two emulated devices.

    Args:
        quick: one small model of each list.

    Returns:
        Small ones first, of each kind those set aside last.
    """
    with _one_thread():
        return _rows(quick=quick)


def _rows(*, quick: bool) -> list[Row]:
    rows: list[Row] = []
    for deep in (False,) if quick else (False, True):
        for aside in (False, True):
            for name, build in islice(families(deep=deep, aside=aside), 1 if quick else None):
                if not rows:
                    _row("", build(), deep=deep, aside=aside)  # compiled code is loaded
                rows.append(_row(name, build(), deep=deep, aside=aside))
    return rows


def table(rows: list[Row]) -> Table:
    """The rows as a table, with the medians of small and of deep models.

    Args:
        rows: what was measured.
    """
    parts = ("run", "graph", "placers", "search", "assign")
    shown = table_of(
        "What distribute costs; parts in percent (* set aside)",
        ("model",),
        ("layers", "plain, ms", "distribute, s", "times plain", *parts),
    )
    for row in rows:
        name = f"{row.model}{'*' if row.aside else ''}"
        cells = [f"{row.layers:,}", f"{row.plain_s * 1e3:.1f}", f"{row.distribute_s:.2f}", f"{row.ratio:.0f}"]
        shown.add_row(name, *cells, *_percent([row]))
    for deep in (False, True):
        some = [row for row in rows if row.deep is deep]
        if some:
            title = f"{'deep' if deep else 'small'} ones, median"
            ratio = median([row.ratio for row in some])
            shown.add_row(title, "", "", "", f"{ratio:.0f}", *_percent(some))
    return shown


def _percent(rows: list[Row]) -> list[str]:
    shares = [[part / row.distribute_s for part in row.parts_s] for row in rows]
    return [f"{100 * median(column):.0f}" for column in zip(*shares, strict=True)]


def _row(name: str, example: tuple[nn.Module, Any], *, deep: bool, aside: bool) -> Row:
    model, inputs = example
    cluster, given = Cluster.virtual(_DEVICES), Inputs.of(inputs)
    plain_s = min([_timed(lambda: _plain(model, given))[0] for _ in range(_PLAIN_TIMES)])
    run_once(model, given, training=True)
    profile_s, graph = _timed(lambda: profile(model, inputs, cluster=cluster, training=True))
    run_s, _ = _timed(lambda: run_once(model, given, training=True))
    placers_s, _ = _timed(lambda: place(graph, cluster, effort=0))
    place_s, plan = _timed(lambda: place(graph, cluster))
    assign_s, _ = _timed(lambda: assign(model, plan))
    rest_s = max(0.0, profile_s - run_s), max(0.0, place_s - placers_s)
    parts_s = profile_s - rest_s[0], rest_s[0], place_s - rest_s[1], rest_s[1], assign_s
    return Row(name, deep, aside, len(plan.device_of), plain_s, *parts_s)


def _plain(model: nn.Module, inputs: Inputs) -> None:
    """A forward and a backward, which begins where capture has it begin."""
    losses = losses_among(model(*inputs.args, **inputs.kwargs))
    torch.autograd.backward(losses, [torch.ones_like(loss) for loss in losses])
    model.zero_grad()


def _timed(task: Callable[[], Any]) -> tuple[float, Any]:
    start_s = time.process_time()
    result = task()
    return time.process_time() - start_s, result


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
