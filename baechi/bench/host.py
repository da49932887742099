"""What the runtime takes of this machine's host (`HostCosts`), beside the figures that are shipped.

On emulated devices, and on accelerators where torch sees one: a single one as two parts.
"""

import time
from dataclasses import asdict
from statistics import median
from typing import Any

import torch
from rich.table import Table

from baechi.bench.figures import Figures, table_of
from baechi.measure import host
from baechi.measure.host import LAYERS
from baechi.records.cluster import Cluster
from baechi.records.device import HostCosts

_PAIRS = 100


def measure(*, quick: bool = False) -> Figures:
    """Measure, and show.

    Args:
        quick: one round of small models.
    """
    rounds, layers = (1, 20) if quick else (30, LAYERS)
    pair_s, costs = bare_pair_s(rounds=rounds), host(rounds=rounds, layers=layers)
    tables, data = [table(costs, pair_s, "emulated")], {**asdict(costs), "bare_pair_s": pair_s}
    if count := torch.accelerator.device_count():
        devices = Cluster.discover(split=1 if count > 1 else 2, measure=False)
        costs = host(rounds=rounds, layers=layers, cluster=devices)
        tables.append(table(costs, pair_s, ", ".join(devices.names[:2])))
        data["accelerators"] = asdict(costs)
    return Figures(tuple(tables), data)


class _Bare(torch.autograd.Function):
    """Does nothing: what any `autograd.Function` costs."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0]


def bare_pair_s(*, rounds: int = 30) -> float:
    """What two calls of an empty `autograd.Function` take, to measure a transfer by, which makes two.

    Args:
        rounds: how often a chain of them is timed.

    Returns:
        Seconds of processor time of a pair.
    """
    x, taken_s = torch.ones(2, 4, requires_grad=True), []
    for _ in range(rounds):
        begun_s, made = time.process_time(), x
        for _ in range(2 * _PAIRS):
            made = _Bare.apply(made)  # type: ignore[no-untyped-call]
        taken_s.append((time.process_time() - begun_s) / _PAIRS)
    return median(taken_s)


def table(costs: HostCosts, pair_s: float, devices: str) -> Table:
    """The figures as a table.

    Args:
        costs: what was measured.
        pair_s: seconds of a bare pair.
        devices: what kind of devices.
    """
    title = f"What the runtime takes of the host ({devices}), microseconds; a bare pair: {pair_s * 1e6:.1f}"
    shown = table_of(title, ("each",), ("here", "in bare pairs", "as shipped"))
    usual = asdict(HostCosts.usual())
    for name, seconds in asdict(costs).items():
        what = name.removesuffix("_s").replace("_", " ")
        here, pairs = f"{seconds * 1e6:.1f}", f"{seconds / pair_s:.1f}"
        shown.add_row(what, here, pairs, f"{usual[name] * 1e6:.1f}")
    return shown
