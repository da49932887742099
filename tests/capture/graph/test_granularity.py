"""What is one layer, why, and how the user changes that."""

from typing import Any

import pytest
import torch
from run.every_way import WAYS, Way, same
from torch import Tensor, nn

import baechi
from baechi.errors import PlacementError
from baechi.records import Cluster, LayerGraph


class Block(nn.Module):
    """Attention, one layer, and two linear layers; scaled by a parameter, as in CaiT."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.wide, self.narrow = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.scale * self.attention(x, x, x, need_weights=False)[0]
        return x + self.narrow(self.wide(x).relu())


class Encoder(nn.Module):
    """Adds a position embedding, runs blocks, and projects: what CLIP's vision tower does."""

    def __init__(self, width: int = 8, blocks: int = 2) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.first, self.positions = (nn.Parameter(torch.randn(1, n, width)) for n in (1, 5))
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.projection = nn.Parameter(torch.randn(width, 4))

    def forward(self, pictures: Tensor) -> Tensor:
        x = self.patches(pictures).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(len(x), -1, -1), x], 1) + self.positions
        for block in self.blocks:
            x = block(x)
        return x[:, 0] @ self.projection


class Tower(nn.Module):
    """An encoder below the root, with a head."""

    def __init__(self, blocks: int = 2) -> None:
        super().__init__()
        self.encoder, self.head = Encoder(blocks=blocks), nn.Linear(4, 2)

    def forward(self, pictures: Tensor) -> Tensor:
        return self.head(self.encoder(pictures))


class Attention(nn.Module):
    """One layer, since its own code multiplies what its layers return."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.ask, self.key, self.out = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.out((self.ask(x) @ self.key(x).mT).softmax(-1) @ x)


def pictures() -> Tensor:
    return torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(3))


def graph_of(model: nn.Module, *inputs: Tensor, **arguments: Any) -> LayerGraph:
    return baechi.profile(model, inputs, cluster=Cluster.uniform(2), source="estimate", **arguments)


@pytest.mark.parametrize("blocks", [1, 2, 5])
def test_reading_a_small_weight_folds_nothing(blocks: int) -> None:
    """Each block's layers are nodes, however few there are; the op that reads a weight owns it."""
    graph = graph_of(Tower(blocks), pictures())
    layers = [name for name in graph.placed() if graph.costs(name).kind == "layer"]
    assert layers == [
        "encoder.patches",
        *[f"encoder.blocks.{n}.{name}" for n in range(blocks) for name in ("attention", "wide", "narrow")],
        "head",
    ]
    owned = {weight: name for name, costs in graph.placed_costs() for weight in costs.weights or ()}
    assert owned["encoder.positions"] == "glue:encoder/add#0"
    assert owned["encoder.first"] == "glue:encoder/cat#0"
    assert owned["encoder.projection"] == "glue:encoder/matmul#0"
    assert owned["encoder.blocks.0.scale"] == "glue:encoder.blocks.0/mul#0"
    assert owned.keys() == {name for name, _ in Tower(blocks).named_parameters()}


@pytest.mark.parametrize("way", [way for way in WAYS if way.placer.startswith("random")], ids=str)
def test_ops_with_weights_compute_the_same(way: Way) -> None:
    """Training with such ops anywhere gives the numbers, and the weights, of one device."""

    def run(model: Any) -> Any:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            model(pictures().double()).square().mean().backward()
            optimizer.step()
        return [weight.detach().clone() for weight in model.parameters()]

    def build() -> nn.Module:
        torch.manual_seed(1)
        return Tower().double()

    same(way, run, build=build, inputs=lambda: pictures().double(), tolerance=1e-9, waits=False)


def test_a_layer_says_why_it_is_one() -> None:
    """Each reason to keep a module whole stands on its node; a module without children has none."""
    model = nn.Sequential(
        Attention(), nn.MultiheadAttention(8, 2), nn.Sequential(nn.ReLU(), nn.Tanh()), nn.Linear(8, 8)
    )
    model.forward = lambda x: model[3](model[2](model[1](*[model[0](x)] * 3)[0]))  # type: ignore[method-assign]
    graph = graph_of(model, torch.randn(2, 3, 8))
    because = {name: graph.costs(name).whole_because for name in graph.placed()}
    assert because == {
        "0": "its own code does heavy work (bmm); split_module_classes=['Attention'] divides it",
        "1": "torch may compute it in one kernel; a module of your own, made of its layers, is divided",
        "2": "nothing in it has weights; split_module_classes=['Sequential'] divides it",
        "3": "",
    }
    graph = graph_of(model, torch.randn(2, 3, 8), no_split_module_classes=["Attention"])
    assert graph.costs("0").whole_because == "no_split_module_classes names it"


def test_split_module_classes() -> None:
    """A class, its name or one module's name divides what would be whole; others stay."""
    model, x = nn.Sequential(Attention(), Attention()), torch.randn(2, 3, 8)
    for both in (["Attention"], Attention, "Attention"):
        names = list(graph_of(model, x, split_module_classes=both).placed())
        assert "0.ask" in names and "1.ask" in names and "glue:0/matmul#1" in names
    names = list(graph_of(model, x, split_module_classes=["1"]).placed())
    assert names[0] == "0" and names[1:3] == ["1.ask", "1.key"]


@pytest.mark.parametrize(
    "arguments, said",
    [
        ({"split_module_classes": ["Linear"]}, "names '0.ask', which cannot be divided: no module is inside"),
        ({"split_module_classes": ["1"]}, "cannot be divided: torch may compute it in one kernel"),
        (
            {"split_module_classes": ["Attentoin"]},
            "split_module_classes names 'Attentoin', which is no class",
        ),
        ({"split_module_classes": ["0"], "no_split_module_classes": [Attention]}, "'0' is named in no_split"),
    ],
)
def test_what_cannot_be_split(arguments: dict[str, Any], said: str) -> None:
    """It is refused with the module and the reason."""
    model = nn.Sequential(Attention(), nn.TransformerEncoderLayer(8, 2))
    with pytest.raises(ValueError, match=said):
        graph_of(model, torch.randn(2, 3, 8), **arguments)


def test_an_error_says_why_a_layer_is_so_large() -> None:
    """No placement fits because of a layer with modules inside: the error says how to divide it."""
    cluster = Cluster.virtual(2, memory="8KiB")
    model, x = nn.Sequential(Attention(32), Attention(32)), torch.randn(2, 3, 32)
    with pytest.raises(PlacementError) as refused:
        baechi.distribute(model, x, cluster=cluster, training=False)
    why = "0 is one layer: its own code does heavy work (bmm); split_module_classes=['Attention'] divides it."
    assert why in str(refused.value).splitlines()
    four = Cluster.virtual(4, memory="12KiB")
    divided = dict(split_module_classes=Attention, effort=0)
    baechi.distribute(model, x, cluster=four, training=False, **divided)
    assert len(baechi.plan_of(model).devices_used) > 2
