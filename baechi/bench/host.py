"""What the runtime takes of this machine's host (`HostCosts`), beside the figures that are shipped.

On emulated devices, and on accelerators where torch sees one: a single one as two parts.
"""

import time
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from statistics import median
from typing import Any

import torch
from rich.table import Table

from baechi.bench.figures import Figures, table_of
from baechi.bench.runtime import FEATURES, Ladder, hooked, timed
from baechi.measure import host
from baechi.measure.host import LAYERS
from baechi.records.cluster import Cluster
from baechi.records.device import HostCosts

_PAIRS = 100
_LEAST_ROUNDS = 9
"""A difference of fewer medians is noise."""


def measure(*, quick: bool = False) -> Figures:
    """Measure, and show.

    Args:
        quick: one round of small models.
    """
    rounds, layers = (1, 20) if quick else (30, LAYERS)
    first = _beside(rounds)
    costs = host(rounds=rounds, layers=layers)
    beside = first.least(_beside(rounds))  # other work on the machine may disturb one of them
    tables, data = [table(costs, beside, "emulated")], {**asdict(costs), **asdict(beside)}
    if count := torch.accelerator.device_count():
        devices = Cluster.discover(split=1 if count > 1 else 2, measure=False)
        costs = host(rounds=rounds, layers=layers, cluster=devices)
        tables.append(table(costs, beside, ", ".join(devices.names[:2])))
        data["accelerators"] = asdict(costs)
    return Figures(tuple(tables), data)


@dataclass(frozen=True)
class Beside:
    """What the costs are compared with.

    Args:
        bare_pair_s: seconds of two calls of an empty `autograd.Function`.
        hooks_s: seconds that accelerate's hooks add to a layer call; None where it is not installed.
    """

    bare_pair_s: float
    hooks_s: float | None

    def least(self, other: "Beside") -> "Beside":
        """The smaller one of each."""
        hooks = [seconds for seconds in (self.hooks_s, other.hooks_s) if seconds is not None]
        return Beside(min(self.bare_pair_s, other.bare_pair_s), min(hooks, default=None))


def _beside(rounds: int) -> Beside:
    return Beside(bare_pair_s(rounds=rounds), hooks_s(rounds=rounds))


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


def hooks_s(*, rounds: int = 30) -> float | None:
    """What accelerate's hooks add to a layer call.

    Args:
        rounds: how often a model with and without hooks is timed.

    Returns:
        Seconds of processor time; None where accelerate is not installed, or other work was in the way.
    """
    if find_spec("accelerate") is None:
        return None
    x, plain, with_hooks = torch.ones(2, FEATURES), Ladder(LAYERS // 2), hooked(Ladder(LAYERS // 2))
    taken_s = [(timed(plain, x), timed(with_hooks, x)) for _ in range(max(rounds, _LEAST_ROUNDS))]
    plain_s, hooked_s = (median(seconds) for seconds in zip(*taken_s, strict=True))
    return (hooked_s - plain_s) / LAYERS if hooked_s > plain_s else None


def table(costs: HostCosts, beside: Beside, devices: str) -> Table:
    """The figures as a table.

    Args:
        costs: what was measured.
        beside: what they are compared with.
        devices: what kind of devices.
    """
    pair_s, hook_s = beside.bare_pair_s, beside.hooks_s
    also = "" if hook_s is None else f"; accelerate's hooks: {hook_s * 1e6:.1f}"
    title = (
        f"What the runtime takes of the host ({devices}), microseconds; a bare pair: {pair_s * 1e6:.1f}{also}"
    )
    shown = table_of(title, ("each",), ("here", "in bare pairs", "times the hooks", "as shipped"))
    usual = HostCosts.usual().by_work()
    for name, seconds in costs.by_work().items():
        what = name.replace("_", " ")
        here, pairs = f"{seconds * 1e6:.1f}", f"{seconds / pair_s:.1f}"
        times = "" if hook_s is None else f"{seconds / hook_s:.1f}"
        shown.add_row(what, here, pairs, times, f"{usual[name] * 1e6:.1f}")
    return shown
