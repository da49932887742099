"""Steps as programs: losses, gradients and buffers of the loop over microbatches, or of the plain step."""

import contextlib
import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from run.pipeline.by_loop import SEED, WithLoss, assert_as_loop, assert_same_gradients, doubled, without_plan
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, dropout, interpolate

import baechi
from baechi.run import runtime_of

EXACT = baechi.Stages(backend="aot_eager")


class Tied(nn.Module):
    """An embedding that is the head as well, dropouts, batch norm, and writes across the plan's cuts."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm, self.drop = nn.Embedding(11, 8), nn.BatchNorm1d(8), nn.Dropout(0.2)
        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(4)])
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.table.weight

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        kept = hidden = self.table(x)
        for layer in self.layers:
            hidden = self.drop(layer(hidden).relu())
            hidden += kept
        hidden = self.norm(hidden.transpose(1, 2)).transpose(1, 2)
        return cross_entropy(self.head(hidden).flatten(0, 1), y.flatten())


class Towers(nn.Module):
    """Two stacks that meet at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Sequential(*self._rows()), nn.Sequential(*self._rows())

    @staticmethod
    def _rows() -> Iterator[nn.Module]:
        for _ in range(2):
            yield nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        apart: Tensor = self.left(x).mean(1) - self.right(y).mean(1)
        return apart.square().mean()


def tied() -> tuple[nn.Module, dict[str, Any]]:
    return Tied(), {"x": torch.randint(11, (8, 3)), "y": torch.randint(11, (8, 3))}


def towers() -> tuple[nn.Module, dict[str, Any]]:
    return Towers(), {"x": torch.randn(8, 3, 8), "y": torch.randn(8, 3, 8)}


def made(build: Callable[[], tuple[nn.Module, dict[str, Any]]]) -> tuple[nn.Module, dict[str, Any]]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model, inputs = build()
        return model.double().train(), doubled(inputs)


ORDERS = [(2, "gpipe", 2), (4, "1f1b", 3), (4, "auto", 4)]
CASES = [
    *[pytest.param(tied, *order) for order in ORDERS[1:]],
    pytest.param(tied, *ORDERS[0], marks=pytest.mark.full),
    *[pytest.param(towers, *order, marks=pytest.mark.full) for order in ORDERS],
]


@pytest.mark.parametrize(("build", "number", "order", "devices"), CASES)
def test_as_the_loop(build: Any, number: int, order: str, devices: int) -> None:
    model, inputs = made(build)
    assert_as_loop(model, inputs, number, devices=devices, order=order, compile=EXACT)
    assert runtime_of(model).counts["programs"] >= 2 * number


def step(model: nn.Module, inputs: dict[str, Any]) -> Tensor:
    """Two steps; returns the last loss."""
    for _ in range(2):
        model.zero_grad()
        torch.manual_seed(SEED)
        loss: Tensor = model(**inputs)
        loss.backward()
    return loss.detach()


@pytest.mark.parametrize("build", [tied, pytest.param(towers, marks=pytest.mark.full)])
@pytest.mark.parametrize("emulated", [False, True])
def test_as_the_plain_step(build: Any, emulated: bool) -> None:
    model, inputs = made(build)
    plain, cluster = copy.deepcopy(model), baechi.Cluster.virtual(3)
    baechi.distribute(model, inputs, cluster=cluster, placer="random:2", compile=EXACT)
    expected = step(plain, inputs)
    with cluster if emulated else contextlib.nullcontext():
        loss = step(model, inputs)
    assert torch.equal(loss, expected)
    assert_same_gradients(model, plain)
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, plain.get_buffer(name)), name
    assert runtime_of(model).counts["programs"] >= 2


def test_three_steps_of_an_optimizer() -> None:
    model, inputs = made(tied)
    plain, cluster = copy.deepcopy(model), baechi.Cluster.virtual(2)
    baechi.distribute(model, inputs, cluster=cluster, placer="even", compile=EXACT)
    for one in (plain, model):
        torch.manual_seed(SEED)
        optimizer = torch.optim.AdamW(one.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            one(**inputs).backward()
            nn.utils.clip_grad_norm_(one.parameters(), 1.0)
            optimizer.step()
    for name, weight in model.named_parameters():
        assert torch.allclose(weight, plain.get_parameter(name), rtol=0, atol=1e-12), name


TRANSFORMERS: dict[str, tuple[str, dict[str, Any], str]] = {
    "gpt2": ("GPT2LMHeadModel", {"n_embd": 16, "n_layer": 3, "n_head": 2, "n_positions": 16}, "GPT2Config"),
    "bert": (
        "BertForMaskedLM",
        {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32},
        "BertConfig",
    ),
    "t5": (
        "T5ForConditionalGeneration",
        {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2, "decoder_start_token_id": 0},
        "T5Config",
    ),
}


@pytest.mark.full
@pytest.mark.parametrize("name", TRANSFORMERS)
@pytest.mark.parametrize(("number", "order"), [(2, "gpipe"), (4, "interleaved")])
def test_transformers_as_the_loop(name: str, number: int, order: str) -> None:
    library = pytest.importorskip("transformers")
    kind, options, config = TRANSFORMERS[name]

    def build() -> tuple[nn.Module, dict[str, Any]]:
        model = getattr(library, kind)(getattr(library, config)(vocab_size=50, **options))
        ids = torch.randint(50, (8, 6))
        return WithLoss(model, lambda out: out["loss"].double()), {"input_ids": ids, "labels": ids}

    model, inputs = made(build)
    assert_as_loop(model, inputs, number, order=order, compile=EXACT)
    assert runtime_of(model).counts["programs"] >= 2 * number


class Resizes(nn.Module):
    """Draws in what was resized: of one row a kernel's strides are others than those that are inferred."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.drop = nn.Linear(6, 6), nn.Conv2d(6, 6, 1), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        image = self.b(self.a(x).transpose(1, 2).reshape(len(x), 6, 4, 4))
        made: Tensor = self.drop(interpolate(image, scale_factor=2.0, mode="bilinear"))
        return (made * torch.arange(8.0, dtype=made.dtype)).square().mean()


@pytest.mark.parametrize("rows", [1, 2])
def test_what_is_resized_is_dropped_as_in_the_code(rows: int) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model, x = Resizes().double(), torch.randn(rows, 16, 6, dtype=torch.float64)
    plain, where = copy.deepcopy(model), {"a": 0, "b": 1, "drop": 1}
    baechi.distribute(model, x, cluster=baechi.Cluster.virtual(2), device_map=where, compile=EXACT)
    losses = []
    for one in (model, plain):
        torch.manual_seed(SEED)
        losses.append(one(x))
        losses[-1].backward()
    assert torch.allclose(*losses, rtol=1e-13)
    assert_same_gradients(model, plain, 1e-13)


class Draws(nn.Module):
    """Draws for what nothing reads, and for a layer of a later run before one of an earlier run."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.drop = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.a(x), self.b(x)
        second = dropout(second, 0.5)
        dropout(second, 0.5)
        first = dropout(first, 0.5)
        return self.drop(first * second).square().mean()


@pytest.mark.parametrize("number", [1, 3])
def test_numbers_are_drawn_in_the_order_of_the_code(number: int) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model, x = Draws().double(), torch.randn(6, 6, dtype=torch.float64)
    plain, where = copy.deepcopy(model), {"a": 0, "b": 1, "drop": 0}
    options: dict[str, Any] = {"microbatches": number, "coupled": "accept"} if number > 1 else {}
    cluster = baechi.Cluster.virtual(2)
    baechi.distribute(model, x, cluster=cluster, device_map=where, compile=EXACT, **options)
    torch.manual_seed(SEED)
    loss = model(x)
    loss.backward()
    expected = without_plan(plain, {"x": x}, number)
    assert torch.allclose(loss.detach(), expected.detach(), rtol=1e-13)
    assert_same_gradients(model, plain, 1e-13)
