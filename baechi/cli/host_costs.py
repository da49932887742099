"""What `baechi bench host` shows: what the runtime takes of this machine's host, by work and by step."""

from dataclasses import asdict

import torch

from baechi.cli.host_steps import host_steps
from baechi.measure import host
from baechi.measure.host_beside import HostBeside
from baechi.records.cluster import Cluster
from baechi.records.device import HostCosts
from baechi.report.tables import Table

_LAYERS, _ROUNDS = 100, 30
_QUICK_LAYERS, _QUICK_ROUNDS = 20, 1


def host_costs(*, quick: bool = False) -> tuple[list[Table], dict[str, object]]:
    """Measure emulated devices, and accelerators where torch sees one: a single one as two parts.

    Args:
        quick: one round of small models.

    Returns:
        A table for each kind of devices, and the same as JSON-able data.
    """
    rounds, layers = (_QUICK_ROUNDS, _QUICK_LAYERS) if quick else (_ROUNDS, _LAYERS)
    first = HostBeside.measured(rounds=rounds)
    costs = host(rounds=rounds, layers=layers)
    beside = first.least(HostBeside.measured(rounds=rounds))  # other work may disturb one of them
    tables, body = [_table(costs, beside, "emulated")], {**asdict(costs), **asdict(beside)}
    if count := torch.accelerator.device_count():
        devices = Cluster.discover(split=1 if count > 1 else 2, measure=False)
        costs = host(rounds=rounds, layers=layers, cluster=devices)
        tables.append(_table(costs, beside, ", ".join(devices.names[:2])))
        body["accelerators"] = asdict(costs)
    table, steps = host_steps(quick=quick)
    return [*tables, table], {**body, "steps": steps}


def _table(costs: HostCosts, beside: HostBeside, devices: str) -> Table:
    pair_s, hook_s, usual = beside.bare_pair_s, beside.hooks_s, HostCosts.usual().by_work()
    also = "" if hook_s is None else f"; accelerate's hooks: {hook_s * 1e6:.1f}"
    title = (
        f"What the runtime takes of the host ({devices}), microseconds; a bare pair: {pair_s * 1e6:.1f}{also}"
    )
    rows = [
        (
            name.replace("_", " "),
            f"{seconds * 1e6:.1f}",
            f"{seconds / pair_s:.1f}",
            "" if hook_s is None else f"{seconds / hook_s:.1f}",
            f"{usual[name] * 1e6:.1f}",
        )
        for name, seconds in costs.by_work().items()
    ]
    columns = ("each", "here", "in bare pairs", "times the hooks", "as shipped")
    return Table(title, columns, tuple(rows), columns[:1])
