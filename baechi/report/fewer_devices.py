"""What a plan gains by its devices: the step on one of them, and whether fewer would do."""

from dataclasses import dataclass, replace

from baechi.errors import PlanError
from baechi.records.device import Device, excess_over
from baechi.records.plan import Plan

AS_GOOD = 0.01
"""A step that is longer by this fraction at most is as good."""

_TARGETS = 3
"""Devices that the layers of another one are moved to, one after the other; the least busy ones."""


@dataclass(frozen=True)
class OneDevice:
    """All layers on one device.

    Args:
        device: its name: of those that hold all layers the one with the shortest step; if none does, the
            one that is short of the fewest bytes.
        step_s: the simulated step.
        short_bytes: by how many bytes its peak exceeds its memory; 0 if it holds all layers.
    """

    device: str
    step_s: float
    short_bytes: int


def on_one_device(plan: Plan) -> OneDevice | None:
    """Simulate all layers on one device, in the code's order."""
    kinds: dict[tuple[str, float, int], Device] = {}
    for device in plan.cluster.devices:
        kinds.setdefault((device.kind, device.speed, device.memory_bytes), device)
    found = []
    for device in kinds.values():
        everywhere = dict.fromkeys(plan.device_of, device.name)
        try:
            whole = Plan(plan.graph, plan.cluster, everywhere, placer="one device")
        except PlanError:  # a layer is pinned elsewhere
            continue
        timeline = whole.timeline
        short_bytes = max(0, timeline.peak_bytes.get(device.name, 0) - device.memory_bytes)
        found.append(OneDevice(device.name, timeline.makespan_s, short_bytes))
    return min(found, key=lambda one: (one.short_bytes, one.step_s), default=None)


def fewest_devices(plan: Plan) -> int:
    """How many devices are as good: the step is longer by 1 % at most, and memory suffices.

    The layers of the least busy device move to another one, again and again, and each such plan is simulated.
    So the answer is a number that certainly is as good; another placement might need fewer still.
    """
    if len(plan.devices_used) < 2:
        return len(plan.devices_used)
    simulated = replace(plan, dry=None) if plan.dry is not None else plan
    enough_s = simulated.timeline.makespan_s * (1 + AS_GOOD)
    while len(simulated.devices_used) > 1 and (merged := _merged(simulated, enough_s)) is not None:
        simulated = merged
    one = on_one_device(plan)
    if one is not None and not one.short_bytes and one.step_s <= enough_s:
        return 1
    return len(simulated.devices_used)


def _merged(plan: Plan, enough_s: float) -> Plan | None:
    """The plan without its least busy device, if it is short enough and fits then; else None."""
    least, *others = sorted(plan.devices_used, key=plan.timeline.busy_s)
    for other in others[:_TARGETS]:
        device_of = {name: other if device == least else device for name, device in plan.device_of.items()}
        try:
            merged = replace(plan, device_of=device_of)
        except PlanError:  # a layer is pinned
            continue
        if merged.timeline.makespan_s <= enough_s and not short_bytes(merged):
            return merged
    return None


def short_bytes(plan: Plan) -> dict[str, int]:
    """By device that is too full, by how many bytes."""
    return excess_over(plan.cluster.devices, plan.timeline.peak_bytes)
