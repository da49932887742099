"""Seconds: measured on this machine, or from datasheets."""

import pytest
import torch
from torch import nn

import baechi
from baechi.measure import measure
from baechi.records import Cluster, Device, Inputs, LayerGraph


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(256, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, 8))


def measured(training: bool = True) -> LayerGraph:
    return baechi.profile(model(), torch.ones(32, 256), training=training, source="hooks", rounds=4)


def test_measured_times() -> None:
    """Every layer has a forward time, in training a backward time, in inference none."""
    graph = measured()
    assert all(graph.amount(n, "forward_s") > 0 and graph.amount(n, "backward_s") > 0 for n in graph.placed())
    graph = measured(training=False)
    assert all(graph.amount(n, "forward_s") > 0 for n in graph.placed())
    assert graph.total("backward_s") == 0


def test_measuring_leaves_no_trace() -> None:
    """Statistics, gradients, modes and the random state are as before."""
    network = model().eval()
    before = {k: v.clone() for k, v in network.state_dict().items()}
    random, attributes = torch.get_rng_state(), [set(vars(m)) for m in network.modules()]
    baechi.profile(network, torch.ones(32, 256), training=True, source="hooks", rounds=2)
    assert all(torch.equal(v, before[k]) for k, v in network.state_dict().items())
    assert all(p.grad is None for p in network.parameters()) and not network.training
    assert torch.equal(random, torch.get_rng_state())
    assert attributes == [set(vars(m)) for m in network.modules()]


def test_estimates_follow_the_datasheet() -> None:
    """A device with half the rates takes twice as long, forward and backward."""
    fast = Device("fast", "fast", 2**30, flops_per_s={"float32": 2e9}, bytes_per_s=2e9)
    slow = Device("slow", "slow", 2**30, flops_per_s={"float32": 1e9}, bytes_per_s=1e9)
    graph = baechi.profile(model(), torch.ones(32, 256), cluster=Cluster((fast, slow)), source="estimate")
    for name in graph.placed():
        for attribute in ("forward_s", "backward_s"):
            times = graph.nodes[name][attribute]
            assert times["slow"] == 2 * times["fast"] > 0


def test_two_profiles_are_equal() -> None:
    """Two profiles of one model differ in measured seconds only."""
    seconds = {"forward_s", "backward_s", "spread_s"}
    for source in ("hooks", "layers", "estimate"):
        graphs = [baechi.profile(model(), torch.ones(32, 256), source=source, rounds=3) for _ in range(2)]  # type: ignore[arg-type]
        one, other = [
            [(n, {k: v for k, v in d.items() if k not in seconds}) for n, d in g.nodes(data=True)]
            for g in graphs
        ]
        assert one == other
        assert list(graphs[0].edges(data=True)) == list(graphs[1].edges(data=True))


def test_auto_measures_this_machines_cpu_only() -> None:
    """Devices of kind `cpu` are measured, others are estimated from their datasheet."""
    here = Cluster((Device("cpu:0", memory_bytes=2**30),), emulated=True)
    graph = baechi.profile(model(), torch.ones(32, 256), cluster=here, rounds=1)
    assert isinstance(graph.nodes["0"]["forward_s"], float)
    graph = baechi.profile(model(), torch.ones(32, 256), cluster=Cluster.virtual(1, like="L4"))
    assert set(graph.nodes["0"]["forward_s"]) == {"L4"}


def test_seconds_of_another_device_are_said(caplog: pytest.LogCaptureFixture) -> None:
    """This machine's CPU is measured where the devices are not here: a warning names them."""
    for source in ("hooks", "layers"):
        for cluster in (Cluster.uniform(2, like="H100-80GB"), Cluster.virtual(2, like="H100-80GB")):
            caplog.clear()
            baechi.profile(model(), torch.ones(32, 256), cluster=cluster, source=source, rounds=1)  # type: ignore[arg-type]
            (warning,) = caplog.messages
            assert "H100-80GB" in warning and "CPU" in warning and source in warning
    caplog.clear()
    here = Cluster((Device("cpu:0", memory_bytes=2**30),), emulated=True)
    baechi.profile(model(), torch.ones(32, 256), cluster=here, source="hooks", rounds=1)
    assert not caplog.messages


def test_wrong_requests() -> None:
    """Unknown sources, no rounds and devices without rates are refused."""
    with pytest.raises(ValueError, match="hooks"):
        baechi.profile(model(), torch.ones(32, 256), source="guess")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="rounds is 0"):
        measure(model(), Inputs(torch.ones(32, 256)), LayerGraph(training=True), rounds=0)
    with pytest.raises(ValueError, match="datasheet"):
        blank = Cluster((Device("x", "unknown", 2**30),))
        baechi.profile(model(), torch.ones(32, 256), cluster=blank)
