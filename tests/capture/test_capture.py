"""The layer graph of small models whose graph is known by heart."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from baechi.capture import capture, capture_each, union
from baechi.errors import CaptureError
from baechi.records import Inputs, LayerGraph


def graph_of(model: nn.Module, *args: Any, training: bool = True, no_split: Any = None) -> LayerGraph:
    return capture(model, Inputs(*args), training=training, no_split_module_classes=no_split)


def edges(graph: LayerGraph) -> set[tuple[str, str]]:
    return {(a, b) for a, b, data in graph.edges(data=True) if not data.get("order_only")}


def storages(tensors: Any) -> int:
    """Bytes of the distinct storages."""
    return sum({id(t.untyped_storage()): t.untyped_storage().nbytes() for t in tensors}.values())


class Net(nn.Module):
    """A module whose forward is a function given to it, over the layers given to it."""

    def __init__(self, forward: Any, **layers: Any) -> None:
        super().__init__()
        self.function = forward
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, *args: torch.Tensor) -> Any:
        return self.function(self, *args)


def test_fan_out_through_glue() -> None:
    """a -> (x2) -> {b, c} -> d keeps every dependency: a piece of glue is a node."""

    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        doubled = m.a(x) * 2
        return m.d(m.b(doubled) + m.c(doubled))

    graph = graph_of(Net(forward, **{name: nn.Linear(4, 4) for name in "abcd"}), torch.ones(2, 4))
    assert edges(graph) == {
        ("input:0", "a"),
        ("a", "glue:/mul#0"),
        ("glue:/mul#0", "b"),
        ("glue:/mul#0", "c"),
        ("b", "glue:/add#0"),
        ("c", "glue:/add#0"),
        ("glue:/add#0", "d"),
    }
    assert list(graph.placed()) == ["a", "glue:/mul#0", "b", "c", "glue:/add#0", "d"]


def test_glue_lies_with_its_largest_newest_input() -> None:
    """Glue lies with its largest input, with the newest among equals, unless a plan places it by itself."""

    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        residual, small = m.a(x), m.s(x)
        return (residual + m.b(residual)) * small

    layers = {"a": nn.Linear(4, 4), "b": nn.Linear(4, 4), "s": nn.Linear(4, 1)}
    graph = graph_of(Net(forward, **layers), torch.ones(2, 4))
    assert graph.nodes["glue:/add#0"]["follows"] == "b"
    assert graph.nodes["glue:/mul#0"]["follows"] == "glue:/add#0"
    assert [*graph.groups().values()] == [["a"], ["s"], ["b", "glue:/add#0", "glue:/mul#0"]]
    assert all(len(group) == 1 for group in graph.groups(apart=True).values())


def test_glue_of_several_inputs_in_several_runs() -> None:
    """It follows an input if it follows that in each run; else it lies with all that it follows in some."""

    def forward(m: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return m.c(m.a(x) + m.b(y)) * m.d(y)

    model = Net(forward, **{name: nn.Linear(4, 4) for name in "abcd"})
    small, large = torch.ones(1, 4), torch.ones(3, 4)
    graph = union(capture_each(model, [Inputs(small, large), Inputs(large, small)], training=False))
    assert "follows" not in graph.nodes["glue:/add#0"]
    assert graph.groups(apart=True)["colocate:a"] == ["a", "b", "glue:/add#0"]
    graph = union(capture_each(model, [Inputs(small, large), Inputs(small, small)], training=False))
    assert graph.nodes["glue:/add#0"]["follows"] == "b" and graph.nodes["glue:/mul#0"]["follows"] == "d"
    assert all(len(group) == 1 for group in graph.groups(apart=True).values())


def test_module_called_twice() -> None:
    """Two calls are two nodes in one group; the weights are counted once."""
    graph = graph_of(Net(lambda m, x: m.a(m.a(x)), a=nn.Linear(4, 4)), torch.ones(2, 4))
    assert list(graph.placed()) == ["a", "a#1"]
    assert graph.nodes["a"]["colocate"] == graph.nodes["a#1"]["colocate"] == "a"
    assert [graph.amount(n, "param_bytes") for n in ("a", "a#1")] == [80, 0]


def test_ties_share_a_device() -> None:
    """Layers with the same weight, and glue that reads it, are one group; bytes are counted once."""

    def forward(m: Any, tokens: torch.Tensor) -> torch.Tensor:
        return m.head(m.embed(tokens)) + F.linear(m.embed(tokens), m.embed.weight)

    model = Net(forward, embed=nn.Embedding(50, 4), head=nn.Linear(4, 50, bias=False))
    model.head.weight = model.embed.weight
    graph = graph_of(model, torch.zeros(1, 1, dtype=torch.long))
    groups = {graph.nodes[n].get("colocate") for n in ("embed", "embed#1", "head", "glue:/linear#0")}
    assert groups == {"embed"}
    assert graph.total("param_bytes") == 50 * 4 * 4


def test_in_place_layers() -> None:
    """A writer lies with what it writes, makes nothing new, and comes after earlier readers."""

    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        hidden = m.a(x)
        seen = m.reader(hidden)
        return m.b(m.relu(hidden)) + seen

    layers = {"a": nn.Linear(4, 4), "reader": nn.Linear(4, 4), "relu": nn.ReLU(inplace=True)}
    graph = graph_of(Net(forward, **layers, b=nn.Linear(4, 4)), torch.ones(2, 4), training=False)
    assert graph.nodes["relu"]["colocate"] == "a" and graph.amount("relu", "output_bytes") == 0
    assert graph.edges["reader", "relu"]["order_only"] is True
    assert ("relu", "b") in edges(graph) and ("a", "b") not in edges(graph)


def test_layers_that_hand_on_their_input() -> None:
    """Identity, flatten and dropout in evaluation stay in the chain, with what they hand on."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Identity(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(4, 2))
    graph = graph_of(model, torch.ones(2, 4), training=False)
    assert edges(graph) == {("input:input", "0"), ("0", "1"), ("1", "2"), ("2", "3"), ("3", "4")}
    assert {graph.nodes[n].get("colocate") for n in "0123"} == {"0"}
    assert sum(graph.amount(n, "output_bytes") for n in "123") == 0


def test_attention_is_kept_whole() -> None:
    """A module whose children's weights its own code reads is one layer."""

    class Reads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.linear(x, self.inner.weight, self.inner.bias)

    model = Net(
        lambda m, x: m.attention(x, x, x, need_weights=False)[0] + m.reads(x),
        attention=nn.MultiheadAttention(4, 2, batch_first=True),
        reads=Reads(),
    )
    graph = graph_of(model, torch.ones(2, 3, 4))
    layers = [n for n in graph.placed() if graph.nodes[n]["kind"] == "layer"]
    assert layers == ["attention", "reads"]
    assert graph.total("param_bytes") == storages(model.parameters())


def test_bare_parameters_belong_to_their_reader() -> None:
    """A parameter of a composite module is owned by the glue that reads it."""

    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        hidden = m.a(x)
        return m.b(torch.cat([m.token.expand(len(x), 1, 4), hidden], dim=1))

    model = Net(forward, a=nn.Linear(4, 4), b=nn.Linear(4, 4), token=nn.Parameter(torch.ones(1, 1, 4)))
    graph = graph_of(model, torch.ones(2, 3, 4))
    assert graph.nodes["glue:/cat#0"]["weights"] == ["token"]
    assert graph.amount("glue:/cat#0", "param_bytes") == graph.amount("glue:/cat#0", "grad_bytes") == 16


def test_unused_and_frozen() -> None:
    """Weights that nothing reads still take memory; frozen ones have no gradient."""
    model = Net(lambda m, x: m.a(x), a=nn.Linear(4, 4), idle=nn.Linear(4, 4))
    model.a.weight.requires_grad_(False)
    graph = graph_of(model, torch.ones(2, 4))
    assert graph.nodes["idle"]["unread"] is True and graph.nodes["idle"]["colocate"] == "a"
    assert (graph.amount("a", "param_bytes"), graph.amount("a", "grad_bytes")) == (80, 16)
    assert graph.total("param_bytes") == 160


def test_no_split_names() -> None:
    """A class name, a class or a qualified name keeps a module whole; an unknown one is refused."""
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Linear(4, 4))
    for wanted in ("Sequential", nn.Sequential, "0"):
        layers = [n for n in graph_of(model, torch.ones(2, 4), no_split=[wanted]).placed()]
        assert layers == (["0", "1"] if wanted == "0" else ["(root)"])
    with pytest.raises(ValueError, match="'Block'"):
        graph_of(model, torch.ones(2, 4), no_split=["Block"])


def test_bytes_of_a_linear_chain() -> None:
    """Parameters, gradients, outputs and what autograd keeps, counted by hand."""
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    train, infer = graph_of(model, torch.ones(3, 4)), graph_of(model, torch.ones(3, 4), training=False)
    assert [train.amount(n, "param_bytes") for n in "012"] == [160, 0, 72]
    assert [train.amount(n, "grad_bytes") for n in "012"] == [160, 0, 72]
    assert [train.amount(n, "output_bytes") for n in "012"] == [96, 96, 24]
    assert [train.amount(n, "saved_bytes") for n in "012"] == [0, 96, 0]
    assert [train.amount(n, "upstream_grad_bytes") for n in "012"] == [96, 96, 24]
    assert infer.total("grad_bytes") == infer.total("saved_bytes") == 0
    assert [train.amount(n, "flops") for n in "012"] == [2 * 3 * 4 * 8, 0, 2 * 3 * 8 * 2]


def test_data_dependent_control_flow() -> None:
    """Where fake tensors cannot go the model runs with real ones; the branch taken is captured."""

    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        return m.a(x) if x.sum() > 0 else m.b(x)

    model = Net(forward, a=nn.Linear(4, 4), b=nn.Linear(4, 4))
    graph = graph_of(model, torch.ones(2, 4))
    assert ("input:0", "a") in edges(graph) and graph.nodes["b"]["unread"] is True


def test_meta_model() -> None:
    """A model on the meta device is captured without memory, ties and all."""
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    graph = graph_of(model, torch.ones(2, 4))
    assert graph.total("param_bytes") == 64 + 16 + 16
    assert all(p.is_meta for p in model.parameters())


def test_a_module_given_as_an_argument() -> None:
    """A layer that reads what it was not given as a tensor lies where that lies."""

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bias = nn.Parameter(torch.zeros(50))

        def forward(self, x: torch.Tensor, embedding: nn.Embedding) -> torch.Tensor:
            return x @ embedding.weight.t() + self.bias

    model = Net(lambda m, t: m.decode(m.embed(t), m.embed), embed=nn.Embedding(50, 4), decode=Decoder())
    graph = graph_of(model, torch.zeros(1, 2, dtype=torch.long))
    assert graph.nodes["decode"]["colocate"] == graph.nodes["embed"]["colocate"]


def test_a_module_called_inside_a_layer_and_outside() -> None:
    """A module shared by a layer that is kept whole and by code outside lies with that layer."""

    class Block(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.inner(x) + 1
            return out

    shared = nn.Linear(4, 4)
    model = Net(lambda m, x: m.shared(m.block(x)), block=Block(shared), shared=shared)
    graph = graph_of(model, torch.ones(2, 4), no_split=["Block"])
    layers = list(graph.placed())
    assert layers[0] == "block" and len(layers) == 2
    assert {graph.nodes[name].get("colocate") for name in layers} == {"block"}


class Counting(nn.Module):
    """Changes whatever a forward can change."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.cache: dict[str, torch.Tensor] = {}
        self.calls = 0
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x: torch.Tensor, fail: bool = False) -> torch.Tensor:
        self.calls += 1
        self.steps += 1
        self.cache["x"] = x
        self.last = F.dropout(x)
        if fail:
            raise RuntimeError("on purpose")
        out: torch.Tensor = self.norm(x) * (1 if float(x.sum()) > 0 else 2)
        return out


@pytest.mark.parametrize("fail", [False, True], ids=["success", "exception"])
def test_left_as_found(fail: bool) -> None:
    """Attributes, caches, buffers and random state are as before, also after an exception."""
    model, x = Counting(), torch.ones(3, 4)
    attributes = {name: set(vars(m)) for name, m in model.named_modules()}
    values = {name: b.clone() for name, b in model.named_buffers()}
    random = torch.get_rng_state()
    if fail:
        with pytest.raises(CaptureError, match="on purpose"):
            graph_of(model, x, True)
    else:
        graph_of(model, x)
    assert attributes == {name: set(vars(m)) for name, m in model.named_modules()}
    assert model.calls == 0 and model.cache == {} and torch.equal(random, torch.get_rng_state())
    assert all(torch.equal(values[name], b) for name, b in model.named_buffers())
    assert not any("_baechi" in key for b in model.buffers() for key in vars(b.untyped_storage()))


def test_two_captures_are_equal() -> None:
    """The same model and inputs give the same graph."""
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(inplace=True), nn.Linear(4, 4))
    assert graph_of(model, torch.ones(2, 4)).to_json() == graph_of(model, torch.ones(2, 4)).to_json()
