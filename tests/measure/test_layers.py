"""Seconds layer by layer: each distinct layer once, alone."""

import gc
import logging
import random
import weakref
from typing import Any

import pytest
import torch
from architectures import HELD_IN, OTHERS, Architecture
from capture.cases import Net
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

import baechi
from baechi.backend.real.driver import Driver
from baechi.backend.real.stopwatch import Stopwatch
from baechi.capture import capture_each, union
from baechi.measure import measure_layers
from baechi.measure.isolated_layer import time_alone
from baechi.records import Cluster, Device, Inputs, LayerGraph
from baechi.torchlib.modules.arguments import Arguments

MEASURED = ("gpt2", "bert", "t5", "vit", "mixtral", "resnet")


def rows(*shape: int) -> Tensor:
    return torch.ones(shape or (4, 8))


def profiled(model: nn.Module, inputs: Any, **kwargs: Any) -> LayerGraph:
    two = Cluster(tuple(Device(f"cpu:{i}", memory_bytes=2**30) for i in range(2)), emulated=True)
    settings = {"source": "layers", "rounds": 2, "training": True, "cluster": two}
    return baechi.profile(model, inputs, **{**settings, **kwargs})


def layers_of(graph: LayerGraph) -> list[str]:
    """The layers that run."""
    nodes = graph.nodes
    return [n for n in graph.placed() if nodes[n]["kind"] == "layer" and not nodes[n].get("unread")]


def distinct(graph: LayerGraph) -> list[str]:
    return [name for name in layers_of(graph) if "twin" not in graph.nodes[name]]


# --- what gets which seconds -------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize(
    "architecture", [row for row in (*HELD_IN, *OTHERS) if row.name in MEASURED], ids=lambda row: row.name
)
def test_twins_take_equally_long(architecture: Architecture, caplog: pytest.LogCaptureFixture) -> None:
    """Layers of an architecture run alone; equal ones have equal seconds, glue has an estimate. (Some of
    T5's decoder is handed a cache that is not empty any more.)"""
    inputs = Inputs(**architecture.inputs())
    with caplog.at_level(logging.WARNING, "baechi"):
        graph = profiled(architecture.build(), inputs, rounds=1)
    ours = [record.getMessage() for record in caplog.records if record.name.startswith("baechi")]
    assert all("Attention is estimated" in m and "a cache, say" in m for m in ours)
    assert bool(ours) == (architecture.name == "t5")
    twins = [name for name in layers_of(graph) if "twin" in graph.nodes[name]]
    assert twins
    for name in twins:
        one, other = graph.nodes[name], graph.nodes[graph.nodes[name]["twin"]]
        assert one["type"] == other["type"] and "twin" not in other
        for key in ("forward_s", "backward_s", "spread_s"):
            assert one.get(key) == other.get(key)
    assert all(graph.amount(name, "forward_s") > 0 for name in layers_of(graph))
    assert all("forward_s" in graph.nodes[name] for name in graph.placed())


def blocks(count: int) -> tuple[nn.Module, Tensor]:
    """A transformer without memory."""
    with torch.device("meta"):
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        stack = nn.TransformerEncoder(layer, count, enable_nested_tensor=False)
        model = nn.Sequential(nn.Embedding(50, 8), stack, nn.Linear(8, 50))
    return model, torch.zeros(2, 5, dtype=torch.long)


@pytest.mark.full
def test_eighty_blocks_cost_what_eight_cost() -> None:
    """The number of distinct layers does not grow with the depth; every block has seconds."""
    few, many = (profiled(*blocks(count), rounds=1) for count in (8, 80))
    assert len(distinct(few)) == len(distinct(many)) == 3
    assert (len(layers_of(few)), len(layers_of(many))) == (10, 82)
    first = many.nodes["1.layers.0"]
    for index in range(1, 80):
        block = many.nodes[f"1.layers.{index}"]
        assert block["forward_s"] == first["forward_s"] > 0
        assert block["backward_s"] == first["backward_s"] > 0


def test_what_trains_is_no_twin_of_what_does_not() -> None:
    """A layer that trains, and one whose input wants no gradient, have other backwards than a frozen one.

    One that runs without gradients is the twin of a frozen one: neither has a backward.
    """

    def forward(m: Any, x: Tensor) -> Tensor:
        with torch.no_grad():
            hidden = m.quiet(x)
        out: Tensor = m.last(m.first(m.frozen(hidden)))
        return out

    parts = {name: nn.Linear(8, 8) for name in ("quiet", "frozen", "first", "last")}
    parts["frozen"].requires_grad_(False)
    graph = profiled(Net(forward, **parts), rows())
    assert distinct(graph) == ["quiet", "first", "last"]
    assert [graph.amount(name, "backward_s") > 0 for name in parts] == [False, False, True, True]


@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
def test_hooks_and_layers_time_the_same(training: bool) -> None:
    """Both put seconds on the same nodes, forward and backward."""

    def forward(m: Any, x: Tensor) -> Tensor:
        hidden = m.a(x)
        return m.c(torch.relu(m.b(m.a(hidden))) + hidden)

    def model() -> nn.Module:
        parts = {name: weight_norm(nn.Linear(8, 8)) if name == "b" else nn.Linear(8, 8) for name in "abc"}
        return Net(forward, **parts, idle=nn.Linear(8, 8))

    hooks, layers = (profiled(model(), rows(), source=s, training=training) for s in ("hooks", "layers"))
    assert list(hooks) == list(layers)
    for attribute in ("forward_s", "backward_s"):
        timed = [[n for n in graph.placed() if graph.amount(n, attribute) > 0] for graph in (hooks, layers)]
        assert timed[0] == timed[1]
        assert bool(timed[0]) == (attribute == "forward_s" or training)
    assert layers.amount("idle", "forward_s") == 0


# --- models anywhere ---------------------------------------------------------------------------


def test_models_without_memory() -> None:
    """A model on the `meta` device stays there; where it would be measured, it is measured so."""
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    here = Cluster((Device("cpu:0", memory_bytes=2**30),), emulated=True)
    graph = profiled(model, torch.empty(4, 8, device="meta"), cluster=here, source="auto")
    assert all(graph.amount(name, "forward_s") > 0 for name in graph.placed())
    assert all(graph.amount(name, "backward_s") > 0 for name in graph.placed())
    assert all(tensor.is_meta for tensor in model.state_dict().values())


def test_layers_that_are_handed_devices_and_other_things() -> None:
    """Devices, dtypes, flags and None go to the layer as they came; nested tensors are made up."""

    def mix(m: Any, pair: dict[str, Any], device: torch.device, *, dtype: torch.dtype, mask: None) -> Tensor:
        assert mask is None and pair["tag"] == "pair"
        return m.inner(pair["both"][0]).to(device=device, dtype=dtype) + pair["both"][1].to(dtype)

    def forward(m: Any, x: Tensor) -> Tensor:
        pair = {"both": (m.a(x), x.bool()), "tag": "pair"}
        return m.mix(pair, x.device, dtype=torch.float64, mask=None)

    mixed = Net(mix, inner=nn.Linear(8, 8))
    model = Net(forward, a=nn.Linear(8, 8), mix=mixed)
    graph = profiled(model, rows(), no_split_module_classes=["mix"])
    assert layers_of(graph) == ["a", "mix"]
    assert graph.amount("mix", "backward_s") > 0 and graph.amount("mix", "spread_s") >= 0


def test_seconds_do_not_ask_which_devices() -> None:
    """One number for each layer, whatever the cluster: a device's speed divides it."""
    for cluster in (Cluster.virtual(2), Cluster.virtual(3, like="L4")):
        graph = profiled(nn.Sequential(nn.Linear(8, 8)), rows(), cluster=cluster)
        seconds = graph.nodes["0"]["forward_s"]
        assert isinstance(seconds, float)
        assert graph.seconds("0", "forward_s", cluster.devices[0].kind, speed=2.0) == seconds / 2


# --- what cannot be timed ----------------------------------------------------------------------


class Cache:
    """What a layer puts tensors into, for its next call."""

    def __init__(self) -> None:
        self.kept: list[Tensor] = []


def test_layers_that_need_a_cache(caplog: pytest.LogCaptureFixture) -> None:
    """A layer that is handed an object with tensors in it gets an estimate, and is named."""

    def remember(m: Any, x: Tensor, cache: Cache) -> Tensor:
        cache.kept.append(m.inner(x))
        return torch.stack(cache.kept).sum(0)

    def forward(m: Any, x: Tensor) -> Tensor:
        cache = Cache()
        return m.late(m.early(m.a(x), cache), cache)

    parts = {name: Net(remember, inner=nn.Linear(8, 8)) for name in ("early", "late")}
    model = Net(forward, a=nn.Linear(8, 8), **parts)
    with caplog.at_level(logging.WARNING, "baechi"):
        graph = profiled(model, rows(), no_split_module_classes=["early", "late"])
    (warning,) = caplog.messages
    assert "layer late is estimated" in warning and "cache" in warning
    for name in ("a", "early", "late"):
        assert graph.amount(name, "forward_s") > 0 and graph.amount(name, "backward_s") > 0
    assert "spread_s" in graph.nodes["early"] and "spread_s" not in graph.nodes["late"]


class Picky(nn.Module):
    """Draws, counts, and refuses what is not all ones."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.calls = nn.Linear(8, 8), 0
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.steps += 1
        random.random()
        noise = torch.rand(8)
        if not bool((x == 1).all()):
            raise RuntimeError("only ones, please")
        out: Tensor = self.inner(x) + noise
        return out


def test_layers_that_raise_on_made_up_values(caplog: pytest.LogCaptureFixture) -> None:
    """The layer is named, with what it said, and gets its estimate; so do those like it."""
    model = Net(lambda m, x: m.b(m.one(x) + m.other(x)), one=Picky(), other=Picky(), b=nn.Linear(8, 8))
    with caplog.at_level(logging.WARNING, "baechi"):
        graph = profiled(model, rows(), no_split_module_classes=["Picky"])
    (warning,) = caplog.messages
    assert "layer one is estimated" in warning and "only ones, please" in warning
    assert graph.nodes["other"]["twin"] == "one"
    assert graph.amount("one", "forward_s") == graph.amount("other", "forward_s") > 0
    assert "spread_s" not in graph.nodes["one"] and "spread_s" in graph.nodes["b"]


@pytest.mark.parametrize("source", ["layers", "hooks"])
@pytest.mark.parametrize("raises", [False, True], ids=["success", "exception"])
def test_nothing_is_left_behind(raises: bool, source: Any) -> None:
    """Gradients, values, flags, attributes and random states are as before, also if a layer raises."""
    first = Picky() if raises else nn.Sequential(nn.BatchNorm1d(8), nn.Dropout(0.5))
    model = nn.Sequential(first, nn.BatchNorm1d(8).eval(), nn.Linear(8, 8)).train()
    model[2].weight.grad = torch.ones(8, 8)
    values = {name: value.clone() for name, value in model.state_dict().items()}
    flags = [module.training for module in model.modules()]
    attributes = [set(vars(module)) for module in model.modules()]
    states, drawn = torch.get_rng_state(), random.getstate()
    profiled(model, rows(), source=source, no_split_module_classes=["Picky"] if raises else None)
    assert all(torch.equal(value, values[name]) for name, value in model.state_dict().items())
    assert torch.equal(model[2].weight.grad, torch.ones(8, 8))
    assert all(weight.grad is None for name, weight in model.named_parameters() if name != "2.weight")
    assert flags == [module.training for module in model.modules()]
    assert attributes == [set(vars(module)) for module in model.modules()]
    assert torch.equal(states, torch.get_rng_state()) and drawn == random.getstate()
    assert getattr(first, "calls", 0) == 0


@pytest.mark.parametrize("source", ["layers", "hooks"])
def test_parts_in_evaluation_stay_so(source: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A frozen norm, in evaluation inside of a model that trains: with one row it could not train."""
    norm = nn.BatchNorm1d(8).requires_grad_(False).eval()
    model = nn.Sequential(nn.Linear(8, 8), norm, nn.Linear(8, 8)).train()
    norm.eval()
    with caplog.at_level(logging.WARNING, "baechi"):
        graph = profiled(model, rows(1, 8), source=source)
    assert not caplog.records
    assert all(graph.amount(name, "forward_s") > 0 for name in "012")


def test_too_few_rounds() -> None:
    """Measuring takes a round."""
    with pytest.raises(ValueError, match="rounds is 0"):
        measure_layers(nn.Linear(8, 8), LayerGraph(training=True), {}, rounds=0)


# --- several examples --------------------------------------------------------------------------


def choose(m: Any, x: Tensor, wide: bool) -> Tensor:
    hidden = m.a(x)
    hidden = m.wide(hidden) if wide else m.narrow(hidden)
    out: Tensor = m.last(hidden * 2)
    return out


@pytest.mark.parametrize("source", ["layers", "hooks"])
@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
def test_unions_have_the_seconds_of_each_path(source: Any, training: bool) -> None:
    """What one example leaves out has the seconds of the other; what both run, the larger ones."""
    model = Net(choose, **{name: nn.Linear(8, 8) for name in ("a", "wide", "narrow", "last")})
    examples = [Inputs(rows(), True), Inputs(rows(64, 8), False)]
    graph = profiled(model, examples, source=source, training=training)
    assert layers_of(graph) == ["a", "narrow", "wide", "last"]
    glue = [name for name in graph.placed() if graph.nodes[name]["kind"] == "glue"]
    assert len(glue) == 2
    for name in graph.placed():
        assert graph.amount(name, "forward_s") > 0
        assert (graph.amount(name, "backward_s") > 0) == training
    assert graph.amount("a", "output_bytes") == 64 * 8 * 4
    assert graph.amount("wide", "output_bytes") == 4 * 8 * 4
    assert not any(data.get("unread") for _, data in graph.nodes(data=True))


def test_unions_take_the_larger_seconds() -> None:
    """Two graphs of one path with seconds put on by hand."""
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    one, other = capture_each(model, [Inputs(rows()), Inputs(rows(2, 8))], training=True)
    for graph, seconds in ((one, (1.0, 4.0)), (other, (2.0, 3.0))):
        for name, taken_s in zip("01", seconds, strict=True):
            graph.nodes[name].update(forward_s=taken_s, backward_s=2 * taken_s, spread_s=taken_s / 8)
    both = union([one, other])
    assert [both.nodes[name]["forward_s"] for name in "01"] == [2.0, 4.0]
    assert [both.nodes[name]["backward_s"] for name in "01"] == [4.0, 8.0]
    assert [both.nodes[name]["spread_s"] for name in "01"] == [0.25, 0.5]


# --- on devices ----------------------------------------------------------------------------------


def here(*kinds: str) -> Cluster:
    """Parts of this machine's CPU, as devices of several kinds."""
    return Cluster(tuple(Device(f"cpu/{i}", kind, memory_bytes=2**30) for i, kind in enumerate(kinds)))


@pytest.mark.parametrize("source", ["auto", "layers"])
def test_each_kind_of_device_is_measured(source: str) -> None:
    """Seconds by kind, for glue as well, and what the host takes to issue; several inputs, too. (Nothing
    runs in the backward of a sum.)"""

    def forward(m: Any, x: Tensor) -> Tensor:
        return torch.relu(m.a(x)) * 2 + m.b(x)

    model = Net(forward, a=nn.Linear(8, 8), b=nn.Linear(8, 8))
    for examples in ([rows()], [rows(), rows(2, 8)]):
        graph = profiled(model, None, examples=examples, source=source, cluster=here("fast", "slow", "fast"))
        for name in graph.placed():
            for attribute in ("forward_s", "backward_s"):
                assert sorted(graph.nodes[name][attribute]) == ["fast", "slow"]
                assert all(seconds > 0 for seconds in graph.nodes[name][attribute].values()) or "add" in name
            assert graph.amount(name, "host_forward_s") > 0
        assert baechi.place(graph, here("fast", "slow"), "m-etf").timeline.makespan_s > 0


class Counting(Driver):
    """A card whose clock and allocator a test moves."""

    def __init__(self) -> None:
        self.now_s, self.live, self.peak = 0.0, 1000, 1000

    def has_streams(self, device: torch.device) -> bool:
        return True

    def synchronize(self, device: torch.device) -> None:
        pass

    def host_s(self) -> float:
        return self.now_s

    def cache_bytes(self, device: torch.device) -> int:
        return 0

    def spin(self, device: torch.device, seconds: float) -> None:
        self.now_s += seconds

    def timed_event(self, device: torch.device) -> Any:
        return self.now_s

    def elapsed_s(self, first: Any, last: Any) -> float:
        return float(last - first)

    def live_bytes(self, device: torch.device) -> int:
        return self.live

    def peak_bytes(self, device: torch.device) -> int:
        return self.peak

    def restart_peak(self, device: torch.device) -> None:
        self.peak = self.live


def test_a_card_is_asked_for_time_and_memory() -> None:
    """Seconds are those between its events, temporary bytes what its allocator gave for a while."""
    driver = Counting()

    class Spy(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            driver.now_s += 3.0
            driver.live += 128  # the output
            driver.peak = driver.live + 4096
            return super().forward(x)

    arguments = Arguments.of((rows(),), {})
    watch = Stopwatch(torch.device("cpu"), driver)
    seconds = time_alone(Spy(8, 8), arguments, training=True, rounds=4, watch=watch)
    assert seconds.forward.device_s == 3.0 and seconds.temp_bytes == 4096


def test_only_one_layer_is_there() -> None:
    """Copies of layers come and go one by one: the next is made when the one before is gone."""
    alive: weakref.WeakSet[nn.Module] = weakref.WeakSet()
    most = 0

    class Seen(nn.Linear):
        def __deepcopy__(self, memo: Any) -> "Seen":
            nonlocal most
            gc.collect()
            copied = Seen(self.in_features, self.out_features)
            alive.add(copied)
            most = max(most, len(alive))
            return copied

    profiled(nn.Sequential(Seen(8, 8), Seen(8, 16), Seen(16, 4)), rows())
    assert most == 1
