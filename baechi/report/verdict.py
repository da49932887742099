"""A plan in one sentence of figures: what it gains, how near the bound it is, what the limit is.

The bound is a time that no plan of the model on these devices can beat (`shortest_step_s`). The limit is what
the critical path consists of: a module, one or all devices, a link, or the host. A module is named where it
holds most of the path and there is work beside it, so that it stands out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor

from baechi.records.plan import Plan
from baechi.records.timeline import Timeline
from baechi.report import host_share
from baechi.report.critical import Stretch
from baechi.report.fewer_devices import OneDevice, short_bytes
from baechi.report.fold import module_of, prefixes
from baechi.report.reading import Reading, saves_nothing
from baechi.units import format_bytes, format_share

_HOLDS_MOST = 2 / 3
"""A module with this part of the path's computing is what it consists of."""

_BESIDE = 0.05
"""Work beside a module, as a part of the work around it, from which on the module stands out."""

_ALL_BUSY = 0.85
"""Devices that compute for this part of the step on average are all busy."""


@dataclass(frozen=True)
class Judged:
    """What a verdict is made of.

    Args:
        plan: the plan.
        reading: of its predicted step.
        path: the step's critical path.
        one: the step on one device; None if no device may run all layers.
        bound_s: a time that no plan of the graph on the cluster can beat.
        chain_s: a time that no plan can beat, on however many devices of these kinds.
    """

    plan: Plan
    reading: Reading
    path: Sequence[Stretch]
    one: OneDevice | None
    bound_s: float
    chain_s: float

    @property
    def sentence(self) -> str:
        """The verdict."""
        plan, step_s = self.plan, self.plan.timeline.makespan_s
        if not step_s or self.reading.bound == "nothing":
            return "Nothing takes time in this step."
        parts = [*does_not_fit(short_bytes(plan)), gain(plan, self.one, step_s)]
        sentence = ", ".join([*parts, *of_the_bound(self.bound_s, step_s)])
        return f"{sentence[0].upper()}{sentence[1:]}; {_limit(self)}."


def does_not_fit(short: dict[str, int]) -> list[str]:
    """That devices are too full, the worst first; empty if none is."""
    if not short:
        return []
    worst = max(short, key=short.__getitem__)
    more = f" and {len(short) - 1} more" if len(short) > 1 else ""
    return [f"does not fit ({worst} is short of {format_bytes(short[worst])}{more})"]


def gain(plan: Plan, one: OneDevice | None, step_s: float) -> str:
    """How many times as fast as one device."""
    used, there = len(plan.devices_used), len(plan.cluster)
    if used < 2:
        return "all on one device" if there == 1 else f"all on one of {there} devices"
    if one is None:
        return "layers are pinned to several devices"
    if one.short_bytes:
        return "no single device holds it"
    return f"{one.step_s / step_s:.2f} times as fast as one device"


def of_the_bound(bound_s: float, step_s: float) -> list[str]:
    """How near the bound a step is; empty without a bound."""
    tenths = floor(1000 * min(1.0, bound_s / step_s) + 1e-6)  # 100 % only where it is reached
    return [f"{tenths / 10:.1f} % of the bound"] if bound_s else []


def limiting_module(plan: Plan, path: Sequence[Stretch]) -> tuple[str, float]:
    """The module that most of a critical path is computed in, and which stands out."""
    on_path: dict[str, float] = {}
    for stretch in path:
        if stretch.span.kind == "compute":
            _add(on_path, plan, stretch.span.layer, stretch.seconds)
    in_all: dict[str, float] = {}
    for name, device in plan.device_of.items():
        where = plan.cluster.device(device)
        for phase in ("forward_s", "backward_s") if plan.graph.training else ("forward_s",):
            _add(in_all, plan, name, plan.graph.seconds(name, phase, where.kind, where.speed))
    whole_s = on_path.get("", 0.0)
    holding = [module for module in on_path if whole_s and on_path[module] >= _HOLDS_MOST * whole_s]
    found = max(holding, key=lambda module: (module != "", module.count("."), module), default="")
    while found:
        around = prefixes(found)[-2]
        if in_all[around] - in_all[found] >= _BESIDE * in_all[around]:
            break
        found = around
    return found, on_path[found] / whole_s if whole_s else 0.0


def _add(sums: dict[str, float], plan: Plan, layer: str, seconds: float) -> None:
    """Add a layer's time to all modules around it."""
    for module in prefixes(module_of(plan.graph, layer)) if layer in plan.graph else ("",):
        sums[module] = sums.get(module, 0.0) + seconds


def _limit(judged: Judged) -> str:
    """What the limit is, and what follows for more devices."""
    plan, reading, timeline = judged.plan, judged.reading, judged.plan.timeline
    step_s = timeline.makespan_s
    saved = f"{format_share(step_s - judged.chain_s, step_s)} of the step"
    if reading.bound == "transfer":
        share = _of_path(reading, reading.transfer_s)
        return f"the link {reading.where} is the limit (transfers are {share}): less over it adds speed"
    if reading.bound == "host" and host_share.worked_s(timeline):
        worked = host_share.share(timeline, plan.devices_used)
        return f"the host is the limit ({worked}): {host_share.LIFTED} add speed"
    if reading.bound == "host":
        share = _of_path(reading, reading.host_s)
        return f"the host is the limit (devices wait for it for {share}): fewer, larger kernels add speed"
    if reading.bound == "work":
        busy = _busy(plan, timeline)
        if busy >= _ALL_BUSY:
            who = f"{reading.where} is" if len(plan.cluster) == 1 else "all devices are"
            busy_for = f"busy for {format_share(busy, 1)} of the step"
            return f"{who} the limit, {busy_for}: more devices save at most {saved}"
        share = format_share(timeline.busy_s(reading.where), step_s)
        who = f"{reading.where} is the limit, busy for {share} of the step"
        return f"{who}: layers that could run at once share it"
    module, part = limiting_module(plan, judged.path)
    what = "the whole model, layer after layer, is the limit"
    if module:
        what = f"{module} is the limit ({format_share(part, 1)} of the critical path)"
    if saves_nothing(judged.chain_s, step_s):
        return f"{what}: more devices add memory, not speed"
    least_s = max(judged.chain_s, judged.bound_s)
    return f"{what}: no placement saves more than {format_share(step_s - least_s, step_s)} of the step"


def _of_path(reading: Reading, seconds: float) -> str:
    on_path_s = reading.compute_s + reading.transfer_s + reading.host_s
    return f"{format_share(seconds, on_path_s)} of the critical path"


def _busy(plan: Plan, timeline: Timeline) -> float:
    """For which part of the step a device computes, on average."""
    busy_s = sum([timeline.busy_s(name) for name in plan.cluster.names])
    return busy_s / (len(plan.cluster) * timeline.makespan_s)
