"""Lower bounds of a step, each where it binds."""

import pytest
from place.graphs import BYTE_A_SECOND, chain, cluster_of, graph_of

from baechi.records import Cluster, Device
from baechi.simulate import shortest_step_s


def test_path() -> None:
    """Layers behind each other take their sum, on however many devices; backward on top."""
    assert shortest_step_s(chain(6), cluster_of(*[1] * 9)) == 6
    assert shortest_step_s(chain(6, training=True), cluster_of(*[1] * 9)) == 18


@pytest.mark.parametrize(("speeds", "seconds"), [((1, 1), 6), ((1, 3), 3), ((2, 2), 3)])
def test_work(speeds: tuple[float, ...], seconds: float) -> None:
    """Layers beside each other share the devices, the fast one taking more."""
    graph = graph_of({f"l{index}": {"forward_s": 1} for index in range(12)})
    assert shortest_step_s(graph, cluster_of(1, 1, speeds=speeds)) == pytest.approx(seconds)


def test_group() -> None:
    """Layers that share a device run one after the other."""
    graph = graph_of({f"l{index}": {"forward_s": 1, "colocate": 1} for index in range(12)})
    assert shortest_step_s(graph, cluster_of(*[1] * 6)) == 12


def test_times_by_kind() -> None:
    """Each layer counts with its fastest device."""
    devices = (Device("d0", kind="x"), Device("d1", kind="y"))
    graph = graph_of(
        {"a": {"forward_s": {"x": 1, "y": 5}}, "b": {"forward_s": {"x": 5, "y": 1}}}, [("a", "b", 0)]
    )
    assert shortest_step_s(graph, Cluster(devices, link=BYTE_A_SECOND)) == 2


def test_nothing() -> None:
    """An empty graph takes no time."""
    assert shortest_step_s(graph_of({}), cluster_of(1)) == 0
