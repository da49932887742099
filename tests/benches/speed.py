"""How long placing takes: seconds of processor time on large layered random graphs."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rich.table import Table

from baechi.place import find
from baechi.records.cluster import Cluster
from baechi.records.graph import LayerGraph
from baechi.records.plan import Plan
from benches.figures import table_of
from benches.models.layered import cluster_for, layered

PLACERS = ("m-topo", "m-etf", "m-sct")
DEVICES = (4, 8)
SMALL, LARGE = 2_500, 10_000
WIDE, WIDTH = 2_000, 128
TRAVELS = (0.2, 1.0, 5.0, 10.0)

_AMPLE = 4.0
_ENOUGH_S = 1.0
_MOST_TIMES = 5


@dataclass(frozen=True)
class Row:
    """A graph on a cluster.

    Args:
        layers: how many.
        edges: how many.
        width: of a row of layers; None: random, up to the root of `layers`.
        devices: how many.
        place_s: seconds by placer.
    """

    layers: int
    edges: int
    width: int | None
    devices: int
    place_s: Mapping[str, float]


def speed(*, quick: bool = False) -> list[Row]:
    """Place large random graphs.

    Args:
        quick: graphs of a tenth of the size, each once.

    Returns:
        Rows by number of devices: a small graph, one of four times as many layers, and a wide one.
    """
    part, times = (10, 1) if quick else (1, _MOST_TIMES)
    rows = []
    for layers, width in ((SMALL, None), (LARGE, None), (WIDE, WIDTH)):
        graph = layered(layers // part, width=width)
        for devices in DEVICES:
            cluster = cluster_for(graph, devices)
            place_s = {name: _least_s(find(name), graph, cluster, times) for name in PLACERS}
            rows.append(Row(len(graph), graph.number_of_edges(), width, devices, place_s))
    return sorted(rows, key=lambda row: row.devices)


def ratios(rows: list[Row]) -> dict[int, dict[str, float]]:
    """How much longer four times as many layers take, by number of devices and placer.

    Args:
        rows: what `speed` gave.
    """
    found = {}
    for devices in DEVICES:
        small, large = [row for row in rows if row.devices == devices and row.width is None]
        found[devices] = {name: large.place_s[name] / small.place_s[name] for name in PLACERS}
    return found


def m_sct_by_travel(*, quick: bool = False) -> dict[float, tuple[float, float]]:
    """How long m-SCT takes on eight devices, where transfers are short and long.

    Args:
        quick: graphs of a tenth of the size.

    Returns:
        By length of transfers, in mean layer times: seconds for `SMALL` and for `LARGE` layers.
    """
    part, found = 10 if quick else 1, {}
    for travel in TRAVELS:
        graphs = [layered(layers // part, travel=travel) for layers in (SMALL, LARGE)]
        small_s, large_s = (
            _least_s(find("m-sct"), g, cluster_for(g, DEVICES[-1], slack=_AMPLE), 1) for g in graphs
        )
        found[travel] = small_s, large_s
    return found


def travel_table(found: Mapping[float, tuple[float, float]]) -> Table:
    """What `m_sct_by_travel` gave, as a table.

    Args:
        found: seconds by length of transfers.
    """
    sizes = [f"{layers:,} layers" for layers in (SMALL, LARGE)]
    shown = table_of("m-SCT on eight devices, seconds of processor time", (), ("transfers", *sizes, "ratio"))
    for travel, (small_s, large_s) in found.items():
        shown.add_row(f"{travel:g}", f"{small_s:.2f}", f"{large_s:.2f}", f"× {large_s / small_s:.1f}")
    return shown


def table(rows: list[Row]) -> Table:
    """The rows as a table.

    Args:
        rows: what was measured.
    """
    shown = table_of(
        "Placing a layered random graph, seconds of processor time",
        (),
        ("devices", "layers", "width", "edges", *PLACERS),
    )
    for row in rows:
        seconds = [f"{row.place_s[name]:.3f}" for name in PLACERS]
        width = "random" if row.width is None else str(row.width)
        shown.add_row(str(row.devices), f"{row.layers:,}", width, f"{row.edges:,}", *seconds)
    for devices, times in ratios(rows).items():
        shown.add_row(str(devices), "4 times as many", "", "", *[f"× {times[name]:.1f}" for name in PLACERS])
    return shown


def _least_s(
    placer: Callable[[LayerGraph, Cluster], Plan], graph: LayerGraph, cluster: Cluster, times: int
) -> float:
    """The least of a few times: others on the machine can only make it longer."""
    taken: list[float] = []
    while len(taken) < times and sum(taken) < _ENOUGH_S:
        start_s = time.process_time()
        placer(graph, cluster)
        taken.append(time.process_time() - start_s)
    return min(taken)
