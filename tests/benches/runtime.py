"""What the runtime costs the host for each layer call, beside accelerate's hooks, in one run.

Two hundred tiny layers in a chain, so that next to nothing is computed. Processor times are medians over
many runs, each way in turn within a round, so that noise hits all of them. What a step takes once is in them.
"""

import random
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from statistics import median
from typing import Any

import torch
from rich.table import Table
from torch import nn

from baechi.measure.host_beside import FEATURES, Ladder, hooked, timed
from baechi.records.cluster import Cluster
from baechi.records.plan import Plan
from baechi.run.binding import binding_of
from baechi.run.runtime import Reorder
from baechi.verbs.distribute import assign
from baechi.verbs.profile import profile
from benches.figures import Figures, table_of

LAYERS = 200
_HOOKS = "accelerate's hooks"


@dataclass(frozen=True)
class HostCost:
    """What one way to run costs.

    Args:
        name: which way.
        call_s: seconds of processor time added for each layer call.
        times_hooks: by how many times that is what accelerate's hooks add; None where these were not run.
        waited: layers that waited, of all.
    """

    name: str
    call_s: float
    times_hooks: float | None
    waited: int


def measure(*, quick: bool = False) -> Figures:
    """Measure, and show.

    Args:
        quick: one round.
    """
    costs = host_costs(rounds=1 if quick else 30)
    return Figures((table(costs),), [asdict(cost) for cost in costs])


def host_costs(*, rounds: int = 30) -> list[HostCost]:
    """Measure what each way to run adds to a layer call.

    Args:
        rounds: how often each way runs.

    Returns:
        One figure for each way; accelerate's only if it is installed.
    """
    x = torch.ones(2, FEATURES)
    cluster = Cluster.virtual(2)
    ways: list[tuple[str, nn.Module]] = [("plain", Ladder(LAYERS // 2))]
    plans: list[tuple[str, bool, int | None, Reorder]] = [
        ("baechi, nothing waits", True, None, True),
        ("baechi, nothing waits, captured in evaluation", False, None, True),
        ("baechi, waiting, launched by the host", True, 0, "host"),
        ("baechi, waiting, launched by threads", True, 0, "threads"),
    ]
    for name, training, seed, reorder in plans:
        graph = profile(Ladder(LAYERS // 2), x, cluster=cluster, training=training, source="estimate")
        ways.append((name, assign(Ladder(LAYERS // 2), _plan(graph, cluster, seed), reorder=reorder)))
    if find_spec("accelerate") is not None:
        ways.append((_HOOKS, hooked(Ladder(LAYERS // 2))))
    seconds: dict[str, list[float]] = {name: [] for name, _ in ways}
    for number in range(rounds + 3):
        for name, model in ways:
            taken_s = timed(model, x)
            if number >= 3:  # the first ones fill caches
                seconds[name].append(taken_s)
    plain_s = median(seconds["plain"])
    added_s = {name: (median(seconds[name]) - plain_s) / LAYERS for name, _ in ways if name != "plain"}
    hooks_s = added_s.get(_HOOKS)
    return [
        HostCost(name, added_s[name], added_s[name] / hooks_s if hooks_s else None, _waited(model))
        for name, model in ways
        if name != "plain"
    ]


def table(costs: list[HostCost]) -> Table:
    """The figures as a table.

    Args:
        costs: what was measured.
    """
    title = f"Host time added to each of {LAYERS} layer calls"
    shown = table_of(title, ("",), ("microseconds", "times the hooks", "layers that waited"))
    for cost in costs:
        times = "" if cost.times_hooks is None else f"{cost.times_hooks:.2f}"
        shown.add_row(cost.name, f"{cost.call_s * 1e6:.1f}", times, str(cost.waited))
    return shown


def _plan(graph: Any, cluster: Cluster, seed: int | None) -> Plan:
    """Left on one device, right on the other; with a seed, interleaved at random on both."""
    chance = random.Random(seed)
    names = cluster.names
    glue = [node for node in graph.placed() if node.startswith("glue:")]
    where = {node: names[int("left" not in node)] for node in graph.placed()}  # the sum is on the right
    if seed is None:
        return Plan(graph, cluster, where)
    last = f"right.{LAYERS // 2 - 1}"
    where |= {node: chance.choice(names) for node in graph.placed() if node not in (last, *glue)}
    chains = [[n for n in graph.placed() if side in n] for side in ("left.", "right.")]
    order: list[str] = []
    while any(chains):
        order.append(chance.choice([chain for chain in chains if chain]).pop(0))
    return Plan(graph, cluster, where, (*order, *glue))


def _waited(model: nn.Module) -> int:
    binding = binding_of(model)
    return 0 if binding is None else binding.runtime.counts.get("deferred", 0)
