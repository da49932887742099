"""Round robin: the groups are dealt out."""

from place.graphs import chain, cluster_of, graph_of, late_groups

from baechi.place.placers.round_robin import round_robin


def test_dealt_in_turn() -> None:
    """Six layers of a chain on three devices: each gets every third."""
    plan = round_robin(chain(6), cluster_of(999, 999, 999))
    assert [plan.device_of[name] for name in plan.order] == ["d0", "d1", "d2"] * 2
    assert plan.order == tuple(f"l{number}" for number in range(6))


def test_a_group_takes_one_turn() -> None:
    """Layers that share a device are dealt as one."""
    plan = round_robin(late_groups(4), cluster_of(999, 999))
    assert [plan.device_of[f"heavy{number}"] for number in range(4)] == ["d0", "d1", "d0", "d1"]


def test_full_devices_are_passed_over() -> None:
    """A device without room loses its turn, and gets the next group that fits."""
    sizes = {"a": 10, "b": 50, "c": 10, "d": 5}
    graph = graph_of({name: {"param_bytes": size} for name, size in sizes.items()})
    plan = round_robin(graph, cluster_of(999, 20, 999))
    assert dict(plan.device_of) == {"a": "d0", "b": "d2", "c": "d0", "d": "d1"}


def test_pins_take_no_turn() -> None:
    """A pinned layer lies where it is pinned, and the next one has the turn."""
    graph = graph_of({"a": {}, "b": {"pin": "d0"}, "c": {}, "d": {}})
    plan = round_robin(graph, cluster_of(999, 999))
    assert dict(plan.device_of) == {"a": "d0", "b": "d0", "c": "d1", "d": "d0"}
