"""The step on one device, and how many devices would be as good."""

from place.graphs import cluster_of, graph_of

from baechi.records import Plan
from baechi.report.fewer_devices import fewest_devices, on_one_device


def branches(**attributes: object) -> Plan:
    """Two long branches and a short one, each on a device of its own."""
    graph = graph_of(
        {
            "fork": {"forward_s": 1, "param_bytes": 10},
            "left": {"forward_s": 10, "param_bytes": 10},
            "right": {"forward_s": 8, "param_bytes": 10},
            "side": {"forward_s": 1, "param_bytes": 10},
            "join": {"forward_s": 1, "param_bytes": 10},
        },
        [("fork", "left", 0), ("fork", "right", 0), ("fork", "side", 0)]
        + [(name, "join", 0) for name in ("left", "right", "side")],
    )
    devices = {"fork": "d0", "left": "d0", "right": "d1", "side": "d2", "join": "d0"}
    return Plan(graph, cluster_of(*attributes.get("memory", (999, 999, 999))), devices)


def test_one_device() -> None:
    """All layers one after the other; where no device holds them, the one that is short of the least."""
    one = on_one_device(branches())
    assert one is not None and (one.step_s, one.short_bytes) == (21, 0)
    one = on_one_device(branches(memory=(20, 30, 20)))
    assert one is not None and one.device == "d1" and one.short_bytes > 0


def test_pins() -> None:
    """A layer that is pinned says which device; layers that are pinned to two allow none."""
    plan = branches()
    plan.graph.nodes["left"]["pin"] = "d0"
    one = on_one_device(plan)
    assert one is not None and one.device == "d0"
    plan.graph.nodes["right"]["pin"] = "d1"
    assert on_one_device(plan) is None
    assert fewest_devices(plan) == 2


def test_fewest_devices() -> None:
    """The short branch fits beside a long one in time; in memory only where there is room."""
    assert fewest_devices(branches()) == 2
    assert fewest_devices(branches(memory=(30, 10, 10))) == 3
    plan = branches()
    whole = Plan(plan.graph, plan.cluster, dict.fromkeys(plan.device_of, "d1"))
    assert fewest_devices(whole) == 1
