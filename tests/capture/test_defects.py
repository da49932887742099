"""The defects of the first Baechi's profiler and graph, G1 to G13: none of them is here.

That one ran the whole model on one GPU, marked each module's `grad_fn` with the module, and walked the
autograd graph from the output.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
import torch
from capture.cases import Net, linear, linears, rows
from torch import Tensor, nn

from baechi.capture import capture
from baechi.measure import estimate
from baechi.records import Cluster, Device, Inputs, LayerGraph


def graph_of(model: nn.Module, *args: Any, training: bool = True, **kwargs: Any) -> LayerGraph:
    return capture(model, Inputs(*args, **kwargs), training=training)


def test_g1_models_larger_than_any_device() -> None:
    """The whole model, with a full batch, had to fit one GPU to be profiled, which is what placing is
    for. Here a model of a terabyte is captured without any of its memory."""
    side = 2**18
    with torch.device("meta"):
        model = nn.Sequential(*[nn.Linear(side, side, bias=False) for _ in range(4)])
        x = torch.empty(64, side)
    graph = graph_of(model, x)
    assert graph.total("param_bytes") == 4 * 4 * side**2 == 2**40
    assert graph.total("output_bytes") == (4 + 1) * 4 * 64 * side  # the input is a node as well


def test_g2_fan_out_behind_an_operation() -> None:
    """Of a -> (x 2) -> {b, c} -> d the edge to c was missing: a node of the autograd graph that had
    been seen was not visited again for its second consumer."""

    def forward(m: Any, x: Tensor) -> Tensor:
        doubled = m.a(x) * 2
        out: Tensor = m.d(m.b(doubled) + m.c(doubled))
        return out

    graph = graph_of(Net(forward, **linears("abcd")), rows())
    assert graph.has_edge("a", "glue:/mul#0")
    assert set(graph.successors("glue:/mul#0")) == {"b", "c"}
    assert set(graph.predecessors("glue:/add#0")) == {"b", "c"}
    assert list(graph.predecessors("d")) == ["glue:/add#0"]


@pytest.mark.parametrize("training", [True, False])
def test_g3_the_last_operation_is_no_module(training: bool) -> None:
    """`return a(x).softmax(-1)` was an AttributeError."""
    graph = graph_of(Net(lambda m, x: m.a(x).softmax(-1), a=linear()), rows(), training=training)
    assert list(graph.edges) == [("input:0", "a"), ("a", "glue:/softmax#0")]


def test_g4_modules_that_pass_through() -> None:
    """An Identity, or a Dropout in evaluation, took its parent's mark, and the edge to the parent was
    lost; and in a graph without gradients there was no edge at all."""
    model = nn.Sequential(linear(), nn.Identity(), nn.Dropout(0.5).eval(), linear())
    for training in (True, False):
        graph = graph_of(model, rows(), training=training)
        assert list(graph.edges) == [("input:input", "0"), ("0", "1"), ("1", "2"), ("2", "3")]


@pytest.mark.full
def test_g5_deep_models() -> None:
    """A thousand layers in a row were a RecursionError."""
    graph = graph_of(nn.Sequential(*[nn.Linear(1, 1) for _ in range(1000)]), torch.ones(1, 1), training=False)
    layers = [str(index) for index in range(1000)]
    assert list(graph.placed()) == layers
    assert list(graph.edges) == list(zip(["input:input", *layers], layers, strict=False))


def test_g6_outputs_without_gradients() -> None:
    """Where an output had no `grad_fn` (a frozen layer, indices, `no_grad`) the profiler crashed."""

    def forward(m: Any, x: Tensor) -> Tensor:
        with torch.no_grad():
            chosen = m.best(m.frozen(x))
        out: Tensor = m.b(m.embed(chosen))
        return out

    parts = {"frozen": linear().requires_grad_(False), "embed": nn.Embedding(4, 4), "b": linear()}
    graph = graph_of(Net(forward, best=Net(lambda m, x: x.argmax(-1)), **parts), rows())
    chain = ["input:0", "frozen", "best", "embed", "b"]
    assert list(graph.edges) == list(pairwise(chain))
    assert graph.amount("frozen", "grad_bytes") == graph.amount("best", "upstream_grad_bytes") == 0


def test_g7_modules_that_are_called_again() -> None:
    """A module that was called twice was refused, if it was no Embedding: so every ResNet was."""
    model = Net(lambda m, x: m.relu(m.b(m.relu(m.a(x)))), **linears("ab"), relu=nn.ReLU())
    graph = graph_of(model, rows())
    assert list(graph.placed()) == ["a", "relu", "b", "relu#1"]
    assert graph.nodes["relu"]["colocate"] == graph.nodes["relu#1"]["colocate"]
    assert list(graph.edges) == [("input:0", "a"), ("a", "relu"), ("relu", "b"), ("b", "relu#1")]


def test_g8_layers_that_write_in_place() -> None:
    """The flag was set on another object than the one that was asked: layers in place counted their
    output a second time, and could lie elsewhere than what they write."""
    graph = graph_of(nn.Sequential(linear(), nn.ReLU(inplace=True), linear()), rows())
    assert graph.nodes["1"]["writes"] == "given"
    assert graph.amount("1", "output_bytes") == graph.amount("1", "saved_bytes") == 0
    assert graph.nodes["1"]["colocate"] == graph.nodes["0"]["colocate"]


@pytest.mark.parametrize(
    ("dtype", "size"), [(torch.float64, 8), (torch.float32, 4), (torch.bfloat16, 2), (torch.float16, 2)]
)
def test_g9_bytes_of_each_dtype(dtype: torch.dtype, size: int) -> None:
    """Every element took 4 bytes; in half precision an assertion failed."""
    model = nn.Sequential(linear(), nn.ReLU(), Net(lambda m, x: (x > 0, x.argmax(-1)))).to(dtype)
    graph = graph_of(model, rows().to(dtype))
    assert graph.amount("0", "param_bytes") == graph.amount("0", "grad_bytes") == 20 * size
    assert graph.amount("0", "output_bytes") == graph.amount("1", "saved_bytes") == 8 * size
    assert graph.amount("2", "output_bytes") == 8 * 1 + 2 * 8
    assert graph.edges["0", "1"]["bytes"] == 8 * size


@dataclass
class Parts:
    """What a model may return."""

    sums: dict[str, Tensor]
    rest: list[Tensor | None]


def test_g10_keywords_and_nested_values() -> None:
    """Layers took positional tensors and returned one; each further kind of input was an edit of the
    profiler."""

    def forward(m: Any, *, pair: dict[str, Tensor], scale: float, mask: Tensor | None = None) -> Parts:
        sums = m.mix(left=m.a(pair["left"]), right=[m.b(pair["right"])], scale=scale)
        return Parts({"sum": m.c(sums["sum"])}, [sums["left"], mask])

    def mix(m: Any, *, left: Tensor, right: list[Tensor], scale: float) -> dict[str, Tensor]:
        return {"left": left * scale, "sum": left + right[0]}

    model = Net(forward, **linears("abc"), mix=Net(mix))
    graph = graph_of(model, pair={"left": rows(), "right": rows()}, scale=0.5)
    assert set(graph.edges) == {
        ("input:pair.left", "a"),
        ("input:pair.right", "b"),
        ("a", "mix"),
        ("b", "mix"),
        ("mix", "c"),
    }
    assert graph.amount("mix", "output_bytes") == 64


def test_g11_memory_is_not_that_of_the_first_call() -> None:
    """Memory was what the first call of all took (libraries that load, and so on), and times had the
    host's in them. Here bytes are those of any call, and the host's time stands by itself."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2))
    x = torch.ones(2, 3, 4, 4)
    first = graph_of(model, x)
    model(x).sum().backward()
    assert graph_of(model, x).to_json() == first.to_json()
    device = Device("some", "some", 2**30, flops_per_s={"float32": 1e9}, bytes_per_s=1e9)
    times = []
    for launch_s in (1e-6, 1e-3):
        graph = graph_of(model, x)
        estimate(graph, Cluster((device,), launch_s=launch_s))
        times.append({name: graph.nodes[name] for name in graph.placed()})
    for name, slow in times[1].items():
        quick = times[0][name]
        assert slow["forward_s"] == quick["forward_s"] and slow["backward_s"] == quick["backward_s"]
        assert slow["host_forward_s"] == pytest.approx(1000 * quick["host_forward_s"])


@pytest.mark.parametrize("training", [True, False])
def test_g12_models_of_one_layer(training: bool) -> None:
    """A model of one layer was "defined but not used", its own example among them."""
    for model, name in ((linear(), "(root)"), (nn.Sequential(linear()), "0")):
        graph = graph_of(model, rows(), training=training)
        assert list(graph.placed()) == [name] and graph.amount(name, "param_bytes") == 80


def test_g13_weights_that_no_layer_holds() -> None:
    """Modules that did not run, and parameters of composite modules, stayed on the profiling GPU.
    Here every weight has a node that owns it, so each is moved."""

    def forward(m: Any, x: Tensor) -> Tensor:
        out: Tensor = m.a(x) + m.scale
        return out

    weights = {"scale": nn.Parameter(torch.ones(4)), "spare": nn.Parameter(torch.ones(3))}
    model = Net(forward, **linears("a"), idle=nn.Sequential(linear(), nn.BatchNorm1d(4)), **weights)
    graph = graph_of(model, rows())
    owned = [name for node in graph.placed() for name in graph.nodes[node].get("weights", ())]
    assert sorted(owned) == sorted(model.state_dict())
    assert graph.total("param_bytes") == 80 + 16 + 12 + 80 + 32
    assert graph.total("buffer_bytes") == 40
    assert "scale" in graph.nodes["glue:/add#0"]["weights"]
    assert [*graph.groups().values()] == [[*graph.placed()]]
