"""What the runtime takes of the host is measured on small models."""

from dataclasses import replace
from importlib import import_module

import pytest

from baechi.measure import host
from baechi.records import Cluster, HostCosts


def test_host() -> None:
    """Nothing takes less than no time, and what is never free takes some."""
    costs = host(rounds=3, layers=20)
    assert all(0 <= seconds < 0.1 for seconds in costs.by_work().values())
    assert costs.waiting_layer_s > 0 and costs.waiting_layer_threads_s > 0
    assert costs.gradient_transfer_s > 0 and costs.task_s > 0


@pytest.mark.full
def test_on_other_devices() -> None:
    """On the first two devices of a cluster; one alone has no transfers."""
    devices = Cluster.uniform(3).devices
    parts = Cluster(tuple([replace(device, name=f"cpu/{n}") for n, device in enumerate(devices)]))
    assert host(rounds=3, layers=20, cluster=parts).gradient_transfer_s > 0
    with pytest.raises(ValueError, match="takes two devices"):
        host(cluster=Cluster.virtual(1))


def test_two_chains_are_reached_in_turn() -> None:
    """The plan of two chains knows the code's order; else layers would count as skipped, which costs more."""
    module = import_module("baechi.measure.host")
    plan = module._plan(Cluster.virtual(2), module._Pair(4), [False] * 5, None)
    assert plan.order == ("left.0", "right.0", "left.1", "right.1", "last")


def test_shipped() -> None:
    """All shipped costs are above nothing."""
    assert all(seconds > 0 for seconds in HostCosts.usual().by_work().values())


@pytest.mark.parametrize(("rounds", "layers"), [(0, 20), (1, 3), (1, 7)])
def test_too_little(rounds: int, layers: int) -> None:
    """A round and an even number of layers at least."""
    with pytest.raises(ValueError, match="an even number"):
        host(rounds=rounds, layers=layers)
