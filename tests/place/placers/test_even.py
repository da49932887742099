"""An even cut: stretches of equal work."""

from place.graphs import chain, cluster_of, graph_of

from baechi.place.placers.even import even
from baechi.records import LayerGraph


def worked(*seconds: float) -> LayerGraph:
    """Layers of so much work, in a chain."""
    nodes = {f"l{number}": {"forward_s": time, "param_bytes": 10} for number, time in enumerate(seconds)}
    return graph_of(nodes, [(f"l{i}", f"l{i + 1}", 1) for i in range(len(seconds) - 1)])


def test_equal_layers() -> None:
    """Six equal layers on three devices: two each, whatever the devices' speeds."""
    plan = even(chain(6), cluster_of(999, 999, 999, speeds=(1, 5, 0.1)))
    assert [plan.device_of[name] for name in plan.order] == ["d0", "d0", "d1", "d1", "d2", "d2"]


def test_equal_work() -> None:
    """A layer as heavy as five others has a device of its own; a layer goes where its middle lies."""
    plan = even(worked(5, 1, 1, 1, 1, 1), cluster_of(999, 999))
    assert [len(plan.order_on(device)) for device in ("d0", "d1")] == [1, 5]
    plan = even(worked(2, 3, 1), cluster_of(999, 999))
    assert [len(plan.order_on(device)) for device in ("d0", "d1")] == [1, 2]


def test_training_counts_backward() -> None:
    """In training a layer's work is its forward and its backward."""
    nodes = {"a": {"forward_s": 1, "backward_s": 9}, "b": {"forward_s": 5}, "c": {"forward_s": 5}}
    graph = graph_of(nodes, [("a", "b", 1), ("b", "c", 1)], training=True)
    assert dict(even(graph, cluster_of(999, 999)).device_of) == {"a": "d0", "b": "d1", "c": "d1"}


def test_memory_moves_the_cut() -> None:
    """What a device has no room for goes to the next, whose stretch ends where it would have."""
    plan = even(worked(1, 1, 1, 1, 1, 1), cluster_of(15, 999, 999))
    assert [len(plan.order_on(device)) for device in ("d0", "d1", "d2")] == [1, 3, 2]


def test_left_over_goes_back() -> None:
    """What finds no room on the last device goes back to where there is some."""
    plan = even(worked(1, 1, 1, 1), cluster_of(999, 15))
    assert [plan.device_of[name] for name in plan.order] == ["d0", "d0", "d1", "d0"]


def test_no_work_at_all() -> None:
    """Layers without time are one stretch."""
    assert even(worked(0, 0, 0), cluster_of(999, 999)).devices_used == ("d0",)
