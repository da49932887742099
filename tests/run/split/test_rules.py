"""Each layer that can be split, along each dimension: values and gradients are those of the whole layer."""

import operator
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from run.split.split_layers import TOLERANCE, Around, assert_runs_alike, split_on, twins, words
from torch import nn

import baechi
from baechi.errors import ShardedTensorError
from baechi.torchlib.shards.weight import ShardedWeight

CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], str, int]] = {
    "linear out": (lambda: nn.Linear(5, 12), (2, 3, 5), "out", 4),
    "linear out, uneven": (lambda: nn.Linear(5, 11, bias=False), (3, 5), "out", 4),
    "linear in": (lambda: nn.Linear(12, 5), (2, 3, 12), "in", 3),
    "linear in, uneven": (lambda: nn.Linear(10, 5), (3, 10), "in", 4),
    "linear, one row": (lambda: nn.Linear(7, 6), (7,), "out", 2),
    "embedding rows": (lambda: nn.Embedding(12, 4), (), "num_embeddings", 3),
    "embedding rows, padding": (lambda: nn.Embedding(13, 4, padding_idx=9), (), "num_embeddings", 4),
    "embedding dim": (lambda: nn.Embedding(13, 7, padding_idx=2), (), "dim", 3),
    "conv1d out": (lambda: nn.Conv1d(3, 7, 3, padding=1), (2, 3, 9), "out_channels", 3),
    "conv1d in, unbatched": (lambda: nn.Conv1d(4, 3, 2), (4, 9), "in_channels", 2),
    "conv2d out": (lambda: nn.Conv2d(2, 8, 3, stride=2, padding=1), (2, 2, 6, 7), "out_channels", 4),
    "conv2d in": (
        lambda: nn.Conv2d(5, 4, 3, padding=1, padding_mode="circular"), (2, 5, 6, 7), "in_channels", 3
    ),
    "conv2d same": (lambda: nn.Conv2d(3, 5, 3, padding="same", dilation=2), (2, 3, 6, 7), "out_channels", 2),
    "conv3d in": (lambda: nn.Conv3d(4, 3, 2), (1, 4, 3, 4, 3), "in_channels", 4),
    "conv3d out": (lambda: nn.Conv3d(2, 5, 2, bias=False), (1, 2, 3, 4, 3), "out_channels", 3),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients(case: str) -> None:
    """A split layer returns what the whole one does, and so do gradients of weights and inputs."""
    layer, shape, dim, shards = CASES[case]
    model, plain = twins(lambda: Around(layer()))
    given = torch.randn(shape, dtype=torch.float64) if shape else words(3, 4, below=11)
    size = baechi.profile(model, given, cluster=baechi.Cluster.virtual(2)).costs("layer").splits
    assert size is not None
    cluster = split_on(shards, model, given, {"layer": {dim: shards}}, placer="round-robin")
    assert_runs_alike(model, plain, given.requires_grad_(bool(shape)), cluster)
    weight = model.layer.weight
    assert isinstance(weight, ShardedWeight) and len(weight.shards) == shards
    assert len({id(shard.untyped_storage()) for shard in weight.shards}) == shards
    assert len(baechi.plan_of(model).devices_used) > 1


CHANGED: dict[str, tuple[Callable[[], nn.Module], str, str, Any]] = {
    "leaky relu": (lambda: nn.LeakyReLU(0.2), "rows", "negative_slope", 0.7),
    "softplus": (nn.Softplus, "rows", "beta", 2.0),
    "group norm": (lambda: nn.GroupNorm(2, 4), "rows", "eps", 1.0),
    "conv1d": (lambda: nn.Conv1d(4, 4, 3, padding=2), "out_channels", "padding", 1),
}


@pytest.mark.parametrize("case", CHANGED)
def test_attributes_that_change_later(case: str) -> None:
    """A schedule may set a layer's slope, or any attribute, between calls: shards follow it."""
    layer, dimension, name, value = CHANGED[case]
    model, plain = twins(lambda: Around(layer()))
    x = torch.randn(6, 4, 5, dtype=torch.float64, requires_grad=True)
    cluster = split_on(2, model, x, {"layer": {dimension: 2}})
    assert_runs_alike(model, plain, x, cluster)
    for one in (model, plain):
        one.zero_grad()
        setattr(one.layer, name, value)
    assert_runs_alike(model, plain, x.detach().requires_grad_(), cluster)


def test_attributes_that_no_shard_follows() -> None:
    """A layer that could not be split as it is now is refused by name."""
    model, _ = twins(lambda: Around(nn.LeakyReLU(0.2)))
    x = torch.randn(6, 4, dtype=torch.float64)
    split_on(2, model, x, {"layer": {"rows": 2}})
    model.layer.inplace = True
    with pytest.raises(ShardedTensorError, match="a split LeakyReLU was changed after it was split: it"):
        model(x)


NORM: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "layer norm": (lambda: nn.LayerNorm(5), 3),
    "layer norm, two axes, no bias": (lambda: nn.LayerNorm((4, 5), bias=False), 2),
    "layer norm, plain": (lambda: nn.LayerNorm(5, elementwise_affine=False), 4),
    "rms norm": (lambda: nn.RMSNorm(5), 3),
    "elu": (lambda: nn.ELU(0.5), 2),
    "gelu": (lambda: nn.GELU("tanh"), 4),
    "leaky relu": (lambda: nn.LeakyReLU(0.2), 2),
    "softplus": (lambda: nn.Softplus(2, 5), 3),
    "tanh": (nn.Tanh, 2),
    "norm and activation": (lambda: nn.Sequential(nn.LayerNorm(5), nn.SiLU(), nn.RMSNorm(5)), 3),
}  # fmt: skip


@pytest.mark.parametrize("case", NORM)
def test_rows(case: str) -> None:
    """Rows are divided, of other batches than the example, too: of seven, of four, and of one."""
    layer, shards = NORM[case]
    model, plain = twins(lambda: Around(layer()))
    names = [name for name, own in model.named_modules() if not list(own.children())]
    spec = baechi.BatchSpec({"rows": -(-7 // shards)}, range(shards)) if "norm" in case else shards
    cluster = split_on(shards, model, torch.ones(7, 4, 5).double(), dict.fromkeys(names, spec))
    graph = baechi.plan_of(model).graph
    assert [name for name in names if f"{name}[join]" in graph] == names[-1:]
    for rows in (7, 4, 1):
        x = torch.randn(rows, 4, 5, dtype=torch.float64, requires_grad=True)
        assert_runs_alike(model, plain, x, cluster)


WEIGHED: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(5, 4), (5,)),
    "linear over words": (lambda: nn.Linear(5, 4, bias=False), (3, 5)),
    "embedding": (lambda: nn.Embedding(12, 4, padding_idx=9), ()),
    "conv1d": (lambda: nn.Conv1d(3, 4, 3, stride=2), (3, 9)),
    "conv2d, circular": (lambda: nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular"), (3, 6, 5)),
    "conv3d": (lambda: nn.Conv3d(2, 3, 2, bias=False), (2, 3, 4, 3)),
    "conv transpose 1d": (lambda: nn.ConvTranspose1d(3, 4, 3, 2, 1, 1), (3, 5)),
    "conv transpose 2d, groups": (lambda: nn.ConvTranspose2d(4, 6, 2, 2, groups=2), (4, 3, 4)),
    "group norm": (lambda: nn.GroupNorm(2, 4), (4, 3, 5)),
    "group norm, plain": (lambda: nn.GroupNorm(4, 4, affine=False), (4, 2)),
}  # fmt: skip


@pytest.mark.parametrize("case", WEIGHED)
def test_rows_beside_copies_of_weights(case: str) -> None:
    """The weight stays one Parameter on one device, and its gradient is the sum of what shards make."""
    layer, shape = WEIGHED[case]
    model, plain = twins(lambda: Around(layer()))

    def batch(rows: int) -> torch.Tensor:
        return torch.randn(rows, *shape, dtype=torch.float64) if shape else words(rows, 4, below=11)

    spec = baechi.BatchSpec({"rows": 3}, range(3))
    weights = list(model.parameters())
    cluster = split_on(3, model, batch(7), {"layer": spec})
    assert baechi.plan_of(model).devices_used == cluster.names
    assert all(type(weight) is nn.Parameter for weight in weights)
    for rows in (7, 4, 1):
        x = batch(rows).requires_grad_(bool(shape))
        assert_runs_alike(model, plain, x, cluster)
    assert all(map(operator.is_, weights, model.parameters()))
    with torch.no_grad():
        torch.testing.assert_close(model.eval()(x), plain.eval()(x), rtol=0, atol=TOLERANCE)


class Rows(nn.Module):
    """Convolutions between which nothing needs all rows; two of them share a weight, one is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.norm, self.act = nn.Conv2d(3, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.SiLU()
        self.one, self.two, self.frozen = [nn.Conv2d(4, 4, 3, padding=1) for _ in range(3)]
        self.two.weight = self.one.weight
        self.frozen.requires_grad_(False)
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.act(self.norm(self.enter(x)))
        x = self.frozen(torch.relu(self.two(self.one(self.one(x)))) + x)
        made: torch.Tensor = self.head(x.flatten(2).transpose(1, 2))
        return made


LAYERS = ("enter", "norm", "act", "one", "two", "frozen", "head")
HOW: dict[str, tuple[Sequence[str], dict[str, Any]]] = {
    "all": (LAYERS, {}),
    "one of two that share a weight": (("one",), {}),
    "not the owner": (("two", "frozen"), {}),
    "placed": (LAYERS, {"placer": "round-robin"}),
    "in order of the plan": (LAYERS, {"reorder": "threads", "placer": "round-robin"}),
    "in microbatches": (LAYERS, {"microbatches": 2, "loss_weights": "rows"}),
    "backward of weights apart": (
        LAYERS, {"microbatches": 2, "loss_weights": "rows", "weights_apart": True}
    ),
}  # fmt: skip


@pytest.mark.parametrize("how", HOW)
def test_a_model_in_rows(how: str) -> None:
    """Rows go from layer to layer on their devices, with shared, reused and frozen weights."""
    layers, asked = HOW[how]
    model, plain = twins(Rows)
    x = torch.randn(7, 3, 4, 5, dtype=torch.float64, requires_grad=True)
    size = 3 if "microbatches" not in asked else 2  # of the rows of a microbatch, four or three
    spec = {"rows": 3} if "placer" in asked else baechi.BatchSpec({"rows": size}, range(3))
    cluster = split_on(3, model, x.detach(), dict.fromkeys(layers, spec), **asked)
    if how == "all":
        graph = baechi.plan_of(model).graph
        assert [name for name in layers if f"{name}[join]" in graph] == ["head"]
    assert_runs_alike(model, plain, x, cluster)
    assert model.two.weight is model.one.weight


def test_an_input_without_rows_is_refused() -> None:
    """A layer that takes a single row, too, says what is missing."""
    model, _ = twins(lambda: Around(nn.Conv2d(3, 4, 3)))
    split_on(2, model, torch.ones(2, 3, 4, 5).double(), {"layer": {"rows": 2}})
    with pytest.raises(baechi.ShardedTensorError, match=r"shape \(., 4, 5\) has no dimension of rows"):
        model(torch.ones(3, 4, 5).double())


class TwoNames(nn.Module):
    """A layer that a block calls, too, by a name of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.block = nn.Module()
        self.block.same = self.layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.block.same(self.layer(x).sin())
        return made


@pytest.mark.parametrize("dim", ["out", "in"])
def test_a_layer_of_two_names_is_one_layer(dim: str) -> None:
    """What is cut of it is cut once, and what goes whole to the first shard does so once."""
    model, plain = twins(TwoNames)
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    cluster = split_on(2, model, x, {"layer": {dim: 2}}, placer="round-robin")
    assert_runs_alike(model, plain, x, cluster)
    assert model.block.same.weight is model.layer.weight
    with pytest.raises(baechi.PlanError, match="its weight is that of layer; name that one"):
        split_on(2, twins(TwoNames)[0], x, {"block.same": 2})


def test_an_index_out_of_range_raises() -> None:
    """Below the first row, or beyond the last one, an embedding in shards raises as a whole one does."""
    model, _ = twins(lambda: Around(nn.Embedding(12, 4)))
    split_on(2, model, words(3, below=11), {"layer": {"num_embeddings": 3}}, placer="round-robin")
    for index in (-2, 11, 40):  # the model adds one
        with pytest.raises(IndexError, match="index out of range"):
            model(torch.tensor([3, index]))
