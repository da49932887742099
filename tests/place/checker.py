"""The one judge of plans: what a plan must be, from the definitions alone, whoever made it.

It reads the graph, the plan and its timeline, and uses nothing of the placers. The timeline is judged
first, span by span; then bytes are added up over its spans, without the simulator's help.
"""

from dataclasses import replace
from itertools import combinations

from simulate.oracle import peaks_from_spans
from simulate.times import check_times

from baechi.records import Plan
from baechi.simulate import shortest_step_s


def check(plan: Plan) -> None:
    """Judge a plan; an assertion fails if it is none."""
    check_devices(plan)
    check_order(plan)
    bare = without_host(plan)
    check_times(bare, bare.timeline)
    check_memory(bare)
    for device in plan.cluster.devices:
        assert plan.timeline.peak_bytes[device.name] <= device.memory_bytes
    bound_s = shortest_step_s(plan.graph, plan.cluster)
    assert plan.timeline.makespan_s >= bound_s * (1 - 1e-9), "faster than any step can be"


def without_host(plan: Plan) -> Plan:
    """The plan without what a captured graph says of the host and of the runtime.

    The rules that spans are held to here know nothing of either; tests/benches/test_truth.py holds those to
    what the emulated cluster does.
    """
    graph = plan.graph.copy()
    if not any(data.get("host_forward_s") for _, data in graph.nodes(data=True)):
        return plan
    for _, data in graph.nodes(data=True):
        for key in ("host_forward_s", "host_backward_s", "on_host", "returned", "losses"):
            data.pop(key, None)
    for _, _, data in graph.edges(data=True):
        for key in ("on_demand", "no_grad", "unsaved", "parts"):
            data.pop(key, None)
    # what is simulated without a host takes memory at other times
    memory = max(device.memory_bytes for device in plan.cluster.devices)
    devices = tuple([replace(device, memory_bytes=4 * memory) for device in plan.cluster.devices])
    return replace(plan, graph=graph, cluster=replace(plan.cluster, devices=devices))


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
    """No device is ever fuller than it can be; the simulator counts no less than what has to be there."""
    least, peaks = peaks_from_spans(plan, plan.timeline), plan.timeline.peak_bytes
    for device in plan.cluster.devices:
        assert least[device.name] <= peaks[device.name] <= device.memory_bytes
