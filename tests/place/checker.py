"""The one judge of plans: what a plan must be, from the definitions alone, whoever made it.

It reads the graph and the plan and uses nothing of the placers. Memory is judged by the simulator;
for training, and wherever the devices could hold every tensor at once, a plan must keep it.
"""

from itertools import combinations
from typing import Any

from baechi.cost.memory import footprints
from baechi.records import Plan
from baechi.simulate import shortest_step_s, simulate


def check(plan: Plan) -> None:
    """Judge a plan; an assertion fails if it is none."""
    check_devices(plan)
    check_order(plan)
    check_memory(plan)
    timeline = simulate(plan)
    bound_s = shortest_step_s(plan.graph, plan.cluster)
    assert timeline.makespan_s >= bound_s * (1 - 1e-9), "faster than any step can be"


def check_devices(plan: Plan) -> None:
    """Each node has a device that is there; groups share one; pins are kept."""
    layers = {name: data for name, data in plan.graph.nodes(data=True) if data["kind"] != "input"}
    assert set(plan.device_of) == set(layers)
    assert set(plan.device_of.values()) <= {device.name for device in plan.cluster.devices}
    for one, other in combinations(layers, 2):
        if layers[one].get("colocate") is not None and layers[one]["colocate"] == layers[other].get(
            "colocate"
        ):
            assert plan.device_of[one] == plan.device_of[other]
    for name, data in layers.items():
        assert data.get("pin") in (None, plan.device_of[name])


def check_order(plan: Plan) -> None:
    """Each layer once, after all that it depends on."""
    assert sorted(plan.order) == sorted(plan.device_of)
    place = {name: index for index, name in enumerate(plan.order)}
    for source, target in plan.graph.edges:
        assert source not in place or place[source] < place[target]


def check_memory(plan: Plan) -> None:
    """No simulated peak is above the device's memory."""
    peaks = simulate(plan).peak_bytes
    for device in plan.cluster.devices:
        if plan.graph.training or all_at_once_bytes(plan, device.name) <= device.memory_bytes:
            assert peaks[device.name] <= device.memory_bytes


def all_at_once_bytes(plan: Plan, device: str) -> int:
    """What a device would need if it forgot nothing in a forward."""
    table = footprints(plan.graph)
    here = [table[name] for name in plan.order_on(device)]
    sizes: dict[tuple[str, Any], float] = {}
    for source, _, data in plan.graph.edges(data=True):
        key = (source, data.get("tensor"))
        sizes[key] = max(sizes.get(key, 0), data.get("bytes", 0))
    received = [
        sizes[source, data.get("tensor")]
        for source, target, data in plan.graph.edges(data=True)
        if plan.device_of[target] == device and plan.device_of.get(source) != device
    ]
    held = sum(part.permanent_bytes + part.output_bytes for part in here) + sum(received)
    return held + max((part.temp_bytes for part in here), default=0)
