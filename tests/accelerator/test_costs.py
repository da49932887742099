"""What is measured is what the device was given: kernels, launches and links of known logical time."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from architectures import OWN, Architecture
from matrix import pairs_by_tier
from torch import nn

import baechi
from accelerator import NAMES, ToyMachine
from accelerator.devices import cluster
from baechi import Cluster, Device, LayerGraph
from baechi.backend.real import spin
from baechi.backend.real.driver import DRIVER
from baechi.backend.real.stopwatch import Stopwatch
from baechi.measure import launch_seconds, links
from baechi.records.cluster import HOST
from baechi.records.datasheet import datasheet

pytestmark = pytest.mark.default_cases(1)

TWO = cluster(*NAMES[:2])
KIND = TWO.devices[0].kind
ADDMM_S, MM_S, OTHER_S, OWN_HOST_S = 80e-6, 30e-6, 11e-6, 55e-6
WITHIN, near = 0.02, pytest.approx


@pytest.fixture(autouse=True)
def unlimited(toy: ToyMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No test leaves a limit of memory, or a measured cluster."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    yield
    for index in range(len(NAMES)):
        toy.limit(index, None)


@pytest.fixture
def timed(toy: ToyMachine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., ToyMachine]]:
    """Sets what things take; the host's clock is the machine's."""
    monkeypatch.setattr(DRIVER, "host_s", toy.host_s)

    def set_times(**times: Any) -> ToyMachine:
        given = {"kernel_s": OTHER_S, "kernels": {"aten::addmm": ADDMM_S, "aten::mm": MM_S}}
        toy.set_times(**{"bytes_per_s": 1e30, **given, **times})
        return toy

    yield set_times


class Busy(nn.Module):
    """Takes the host time of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ToyMachine.get().host_spends(OWN_HOST_S)
        out: torch.Tensor = self.inner(x).relu()
        return out


class Waiting(nn.Module):
    """Waits for the device in its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.inner(x)
        return hidden if hidden.sum().item() else -hidden


class Model(nn.Module):
    """Short layers, a long one, functional ops between, one layer called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.act, self.busy, self.last = nn.Linear(8, 8), nn.ReLU(), Busy(), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.act(self.first(x))
        out: torch.Tensor = self.last(self.act(self.busy(hidden) + hidden))
        return out


def profiled(model: nn.Module, source: str, **settings: Any) -> LayerGraph:
    whole = {type(part) for part in model.modules()} & {Busy, Waiting}
    given = {"cluster": TWO, "training": True, "rounds": 2, "no_split_module_classes": whole}
    return baechi.profile(model, torch.ones(4, 8), source=source, **{**given, **settings})  # type: ignore[arg-type]


def seconds_of(graph: LayerGraph, name: str, attribute: str) -> float:
    found = graph.nodes[name][attribute]
    return float(found[KIND] if isinstance(found, dict) else found)


FORWARD_S = {"first": ADDMM_S, "act": OTHER_S, "act#1": OTHER_S, "busy": ADDMM_S + OTHER_S, "last": ADDMM_S}
BACKWARD_S = {
    "first": MM_S + OTHER_S,  # the weight's; the bias's is a sum
    "act": OTHER_S,
    "act#1": OTHER_S,
    "busy": 2 * MM_S + 2 * OTHER_S,
    "last": 2 * MM_S + OTHER_S,
}
KERNELS = {"first": (1, 2), "act": (1, 1), "act#1": (1, 1), "busy": (2, 4), "last": (1, 3)}


LAUNCH_S = {"the device is slower": 1e-6, "alike": 7e-6, "the host is slower": 200e-6}


@pytest.mark.parametrize(
    ("source", "slower", "begun"),
    pairs_by_tier(["hooks", "layers", "auto"], list(LAUNCH_S), ["late", "at once"]),
)
def test_layers(timed: Callable[..., ToyMachine], source: str, slower: str, begun: str) -> None:
    """Device and host apart, whichever is slower, in place and alone."""
    launch_s = LAUNCH_S[slower]
    ToyMachine.get().restart(late=begun == "late")
    timed(launch_s=launch_s)
    graph = profiled(Model(), source)
    for name, (forward, backward) in KERNELS.items():
        own_s = OWN_HOST_S * (name == "busy")
        assert seconds_of(graph, name, "forward_s") == near(FORWARD_S[name], rel=WITHIN)
        assert seconds_of(graph, name, "backward_s") == near(BACKWARD_S[name], rel=WITHIN)
        assert seconds_of(graph, name, "host_forward_s") == near(forward * launch_s + own_s, rel=WITHIN)
        assert seconds_of(graph, name, "host_backward_s") == near(backward * launch_s, rel=WITHIN)
    assert graph.total("spread_s") == near(0.0, abs=1e-12)


def test_functional_ops(timed: Callable[..., ToyMachine]) -> None:
    """One layer that takes a thousand times as long does not set them."""
    found = []
    for slow_s in (OTHER_S, 1000 * OTHER_S):
        kernels = {"aten::addmm": ADDMM_S, "aten::mm": MM_S, "aten::_log_softmax": slow_s}
        timed(launch_s=7e-6, kernels=kernels)
        graph = profiled(nn.Sequential(Model(), nn.LogSoftmax(1)), "hooks")
        (add,) = [name for name in graph.placed() if graph.costs(name).kind == "glue"]
        assert seconds_of(graph, add, "host_forward_s") == near(7e-6, rel=WITHIN)
        found.append(seconds_of(graph, add, "forward_s"))
    assert found[1] <= 2 * found[0]
    assert OTHER_S / 2 <= found[0] <= ADDMM_S


@pytest.mark.parametrize("source", ["hooks", "layers"])
def test_the_cpu_beside(timed: Callable[..., ToyMachine], source: str) -> None:
    """Seconds by kind; the host's are those to issue for the accelerator, which the CPU has none of."""
    timed(launch_s=7e-6)
    both = Cluster((TWO.devices[0], Device("cpu", "CPU", **datasheet("CPU"))))
    graph = profiled(Model(), source, cluster=both)
    for name, (forward, _) in KERNELS.items():
        assert graph.nodes[name]["forward_s"].keys() == {KIND, "CPU"}
        assert seconds_of(graph, name, "forward_s") == near(FORWARD_S[name], rel=WITHIN)
        own_s = OWN_HOST_S if name == "busy" else 0.0
        assert seconds_of(graph, name, "host_forward_s") == near(forward * 7e-6 + own_s, rel=WITHIN)


@pytest.mark.parametrize("source", ["hooks", "layers"])
def test_layers_that_wait_for_the_device(timed: Callable[..., ToyMachine], source: str) -> None:
    """The device and the host take what they take there, and no spin is in it."""
    timed(launch_s=7e-6)
    graph = profiled(nn.Sequential(nn.Linear(8, 8), Waiting()), source)
    taken_s = 7e-6 + ADDMM_S + 2 * OTHER_S  # the sum, the copy to the host
    for attribute in ("forward_s", "host_forward_s"):
        assert seconds_of(graph, "1", attribute) == near(taken_s, rel=WITHIN)


def test_inference(timed: Callable[..., ToyMachine]) -> None:
    """There is no backward."""
    timed(launch_s=7e-6)
    graph = profiled(Model().eval(), "hooks", training=False)
    assert {name: seconds_of(graph, name, "forward_s") for name in FORWARD_S} == near(FORWARD_S, rel=WITHIN)
    assert not graph.total("backward_s")


@pytest.mark.parametrize("architecture", OWN, ids=lambda row: row.name)
def test_architectures(toy: ToyMachine, architecture: Architecture) -> None:
    """Ties, views, cells, buffers that are replaced, checkpointing: each layer that runs has seconds."""
    model = architecture.build()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    graph = baechi.profile(model, architecture.inputs(), cluster=TWO, training=True, source="hooks", rounds=1)
    for name, costs in graph.placed_costs():
        if costs.kind == "layer" and costs.kernels:
            assert seconds_of(graph, name, "forward_s") > 0 and costs.host_forward_s > 0
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("source", ["hooks", "auto"])
def test_the_model_is_left_as_found(toy: ToyMachine, source: str) -> None:
    """Weights are back where they were, in the memory that they had, with their gradients."""
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))
    model[0].weight.grad = torch.ones(8, 8)
    before = {name: (value.data_ptr(), value.clone()) for name, value in model.state_dict().items()}
    weights, attributes = list(map(id, model.parameters())), [set(vars(part)) for part in model.modules()]
    state = torch.get_rng_state()
    profiled(model, source)
    for name, value in model.state_dict().items():
        assert value.data_ptr() == before[name][0] and torch.equal(value, before[name][1])
    assert weights == list(map(id, model.parameters()))
    assert attributes == [set(vars(part)) for part in model.modules()]
    assert torch.equal(model[0].weight.grad, torch.ones(8, 8)) and model[3].weight.grad is None
    assert torch.equal(state, torch.get_rng_state())
    assert not any(torch.accelerator.memory_allocated(index) for index in range(len(NAMES)))


def test_auto_takes_hooks_where_the_model_fits(timed: Callable[..., ToyMachine], caplog: Any) -> None:
    """Else layers, also where the memory that is said to be there is not."""
    timed(launch_s=7e-6)
    deep = nn.Sequential(*[nn.Linear(64, 64) for _ in range(12)])
    small = cluster(*NAMES[:2]).with_memory({name: 10_000 for name in NAMES[:2]})
    ways = []
    for limit, devices in ((None, TWO), (None, small), (300_000, TWO)):
        ToyMachine.get().limit(0, limit)
        caplog.clear()
        with caplog.at_level("INFO", "baechi.measure"):
            graph = baechi.profile(deep, torch.ones(4, 64), cluster=devices, training=True, rounds=1)
        ways += [record.name for record in caplog.records if record.name.startswith("baechi.measure.")]
        assert seconds_of(graph, "3", "forward_s") == near(ADDMM_S, rel=WITHIN)
    assert ways == ["baechi.measure.hooks", "baechi.measure.layers", "baechi.measure.layers"]
    with pytest.raises(torch.OutOfMemoryError):
        baechi.profile(deep, torch.ones(4, 64), cluster=TWO, training=True, source="hooks")
    assert all(weight.device.type == "cpu" and weight.grad is None for weight in deep.parameters())


def test_a_device_type_without_a_kernel_that_waits(
    timed: Callable[..., ToyMachine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is kept busy with matrix products."""
    monkeypatch.delattr(torch.toy, "_sleep")  # type: ignore[attr-defined]
    monkeypatch.setattr(spin, "_SIDE", 16)
    monkeypatch.setattr(spin, "_units_per_s", {})
    timed(launch_s=20e-6, kernels={"aten::addmm": ADDMM_S, "aten::mm": 100e-6})
    graph = profiled(Model(), "hooks")
    assert {name: seconds_of(graph, name, "forward_s") for name in FORWARD_S} == near(FORWARD_S, rel=WITHIN)
    assert seconds_of(graph, "busy", "host_forward_s") == near(OWN_HOST_S + 2 * 20e-6, rel=WITHIN)


# --- clusters ------------------------------------------------------------------------------------


@pytest.mark.parametrize("launch_s", [1e-6, 7e-6, 40e-6])
def test_launches(timed: Callable[..., ToyMachine], launch_s: float) -> None:
    """Whether kernels take longer or not."""
    timed(launch_s=launch_s)
    assert launch_seconds(Stopwatch(torch.device(NAMES[1]))) == near(launch_s, rel=WITHIN)


LINKS = {
    (0, 1): (4e-6, 200e9),
    (1, 0): (4e-6, 180e9),
    (-1, 0): (9e-6, 12e9),
    (0, -1): (15e-6, 10e9),
    (-1, 1): (10e-6, 14e9),
    (1, -1): (12e-6, 9e9),
}


def assert_links(found: Cluster) -> None:
    """The links are those that were given."""
    for (source, target), (latency_s, rate) in LINKS.items():
        link = found.link_between(*[HOST if end < 0 else NAMES[end] for end in (source, target)])
        assert link.latency_s == near(latency_s, rel=WITHIN)
        assert link.bytes_per_s == near(rate, rel=WITHIN)


@pytest.mark.parametrize("launch_s", [1e-6, 30e-6])
def test_links(timed: Callable[..., ToyMachine], launch_s: float) -> None:
    """Latency and rate in each direction, without what the host takes to ask for a copy."""
    timed(launch_s=launch_s, links=LINKS)
    assert_links(links(TWO, sizes=[2**12, 2**18, 2**21], rounds=1))


def test_a_cluster_is_measured_once(timed: Callable[..., ToyMachine], tmp_path: Path) -> None:
    """When it is discovered first; then it is found again, also where nothing may be measured."""
    assert not Cluster.discover(measure=False).link_between(*NAMES[:2]).residual
    assert not list(tmp_path.rglob("*.json"))
    timed(launch_s=7e-6, links=LINKS)
    assert_links(found := Cluster.discover())
    assert found.launch_s == near(max(0.0, 7e-6 - found.host.operator_s), rel=WITHIN)  # less torch's part
    timed(launch_s=70e-6)
    for again in (Cluster.discover(), Cluster.discover(measure=False)):
        assert again.links == found.links and again.launch_s == found.launch_s


def test_the_reserve(toy: ToyMachine) -> None:
    """A fraction of all memory is left free, of what is free when others took theirs."""
    toy.limit(0, 10**9)
    taken = torch.empty(10**8, dtype=torch.uint8, device=NAMES[0])
    one, other, all_of_it = (
        Cluster.discover(measure=False, **settings).devices[0].memory_bytes
        for settings in ({}, {"reserve": "100MB"}, {"reserve": 0})
    )
    assert one == all_of_it - 6 * 10**7 and other == all_of_it - 10**8
    assert all_of_it == near(10**9 - taken.nbytes, rel=0.01)


def test_no_memory_left(toy: ToyMachine, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A full device is discovered all the same; its links are guessed, said in the log."""
    toy.limit(1, 10**6)
    assert len(Cluster.discover()) == len(NAMES)
    assert NAMES[1] in caplog.text and not list(tmp_path.rglob("*.json"))
