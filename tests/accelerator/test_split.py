"""Split layers on devices that torch keeps apart: the same numbers, and no access that nothing orders."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from run.split.split_layers import TOLERANCE, Around, Tied, assert_same, twins, words
from run.split.test_attention import ITSELF, Attending
from run.split.test_chains import LINKED, Attention
from run.split.test_rules import LAYERS as IN_ROWS
from run.split.test_rules import Rows
from split.test_functional import ReadsTwice, RunsAgain
from torch import nn

import baechi
from accelerator import NAMES, ToyMachine
from baechi.torchlib.shards.weight import ShardedWeight

from .devices import cluster, compute_on, there

pytestmark = pytest.mark.default_cases(1)

LAYERS: dict[str, tuple[Any, tuple[int, ...], str]] = {
    "linear out": (lambda: nn.Linear(5, 11), (3, 5), "out"),
    "linear in": (lambda: nn.Linear(10, 5), (3, 10), "in"),
    "embedding dim": (lambda: nn.Embedding(13, 7, padding_idx=2), (), "dim"),
    "conv2d out": (lambda: nn.Conv2d(2, 7, 3, padding=1), (2, 2, 6, 7), "out_channels"),
    "layer norm rows": (lambda: nn.LayerNorm(7), (11, 7), "rows"),
    "gelu rows": (nn.GELU, (7, 5), "rows"),
    "linear rows": (lambda: nn.Linear(5, 4), (11, 3, 5), "rows"),
    "conv2d rows": (lambda: nn.Conv2d(2, 7, 3, padding=1), (11, 2, 6, 7), "rows"),
    "conv transpose rows": (lambda: nn.ConvTranspose2d(2, 3, 2, 2), (11, 2, 3, 4), "rows"),
    "group norm rows": (lambda: nn.GroupNorm(2, 4), (11, 4, 3), "rows"),
    "conv1d in": (lambda: nn.Conv1d(4, 3, 2), (2, 4, 9), "in_channels"),
}


@pytest.mark.parametrize("name", LAYERS)
def test_rules(toy: ToyMachine, name: str) -> None:
    """Values and gradients of a layer over three devices."""
    toy.restart(seed=len(name), late=True)
    build, shape, dim = LAYERS[name]
    model, plain = twins(lambda: Around(build()))
    given = torch.randn(shape, dtype=torch.float64) if shape else words(3, 4, below=11)
    devices = cluster(*NAMES[:3])
    size = baechi.BatchSpec({dim: 4 if dim != "in_channels" else 2}, device_matrix=NAMES[:3])
    baechi.distribute(model, given, cluster=devices, split={"layer": size}, source="estimate", effort=0)
    x, y = there(given), given.clone()
    if shape:
        x.requires_grad_()
        y.requires_grad_()
    result, expected = model(x), plain(y)
    (result * result).sum().backward()
    (expected * expected).sum().backward()
    torch.testing.assert_close(result.detach().cpu(), expected.detach(), rtol=0, atol=TOLERANCE)
    assert_same(model, plain)
    if shape:
        torch.testing.assert_close(x.grad.cpu(), y.grad, rtol=0, atol=TOLERANCE)
    if dim == "rows":  # a weight stays whole, with the first shard
        used = set(baechi.plan_of(model).device_of.values())
    else:
        used = {str(shard.device) for shard in model.layer.weight.shards}
    assert len(used) > 1


@pytest.mark.parametrize(("late", "foreach"), [(True, False), (True, True), (False, True)])
def test_training(toy: ToyMachine, late: bool, foreach: bool) -> None:
    """A tied embedding and head train, are copied, saved and restored."""
    toy.restart(seed=5, late=late)
    model, plain = twins(Tied)
    inputs = (words(2, 5), words(2, 5))
    spec = baechi.BatchSpec({"out": 11}, device_matrix=NAMES[:3])
    before = torch.optim.Adam(model.parameters(), lr=0.1, foreach=foreach)
    asked: Any = {"source": "estimate", "optimizer": before, "effort": 0}
    baechi.distribute(model, inputs, cluster=cluster(*NAMES), split={"head": spec}, **asked)
    optimizers = [before, torch.optim.Adam(plain.parameters(), lr=0.1)]
    for _ in range(3):
        for network, optimizer, batch in zip(
            (model, plain), optimizers, (tuple(map(there, inputs)), inputs), strict=True
        ):
            optimizer.zero_grad()
            network(*batch).backward()
            nn.utils.clip_grad_norm_(network.parameters(), 0.5)
            optimizer.step()
    assert_same(model, plain)
    weight: Any = model.head.weight
    assert [str(shard.device) for shard in weight.shards] == [*NAMES[:3], NAMES[0]]
    assert [shard.device for shard in weight.grad.shards] == [shard.device for shard in weight.shards]
    copied = copy.deepcopy(model)
    assert isinstance(copied.head.weight, ShardedWeight) and copied.head.weight is copied.embed.weight
    assert copied(*map(there, inputs)).item() == pytest.approx(plain(*inputs).item(), abs=TOLERANCE)
    model.load_state_dict(plain.state_dict())
    assert torch.equal(model.head.weight.cpu(), plain.head.weight)
    baechi.restore(model)
    assert_same(model, plain)


@pytest.mark.parametrize("microbatches", [None, 2])
@pytest.mark.parametrize("build", [Tied, ReadsTwice, RunsAgain])
def test_sharded_logits(toy: ToyMachine, build: type[nn.Module], microbatches: int | None) -> None:
    """A cross entropy takes the logits where their shards made them, also in a step of microbatches.

    So it does where the head is a functional op.
    """
    toy.restart(seed=6, late=True)
    model, plain = twins(build)
    inputs = (words(4, 5), words(4, 5))
    devices = cluster(*NAMES[:3])
    layer, dim = ("head", "out") if build is Tied else ("embed", "num_embeddings")
    spec = baechi.BatchSpec({dim: 14}, device_matrix=NAMES[:3])
    baechi.distribute(
        model,
        inputs,
        cluster=devices,
        split={layer: spec},
        source="estimate",
        microbatches=microbatches,
        effort=0,
    )
    assert "head[join]" not in baechi.plan_of(model).graph
    for network, batch in ((model, tuple(map(there, inputs))), (plain, inputs)):
        optimizer = torch.optim.Adam(network.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            network(*batch).backward()
            optimizer.step()
    assert_same(model, plain)


@pytest.mark.parametrize("build", ["gated", "in place", "convolutions", "one product, uneven", "rotary"])
def test_chains(toy: ToyMachine, build: str) -> None:
    """Hidden values that stay sharded, from one split layer to the next."""
    toy.restart(seed=7, late=True)
    make, layers = LINKED[build]
    model, plain = twins(make)
    shape, devices = (2, 3, 8) if "o" in layers else (2, 3, 6, 6), cluster(*NAMES[:3])
    x = torch.randn(shape, dtype=torch.float64)
    baechi.distribute(model, x, cluster=devices, split=layers, source="estimate", placer="round-robin")
    for _ in range(2):
        (model(there(x)) ** 2).sum().backward()
        (plain(x) ** 2).sum().backward()
    assert_same(model, plain)
    assert f"{next(iter(layers))}[join]" not in baechi.plan_of(model).graph


@pytest.mark.parametrize("microbatches", [None, 2])
def test_rows(toy: ToyMachine, microbatches: int | None) -> None:
    """Copies of weights arrive before they are used, and their gradients before they are added."""
    toy.restart(seed=10, late=True)
    model, plain = twins(Rows)
    given = torch.randn(8, 3, 4, 5, dtype=torch.float64)
    specs = dict.fromkeys(IN_ROWS, baechi.BatchSpec({"rows": 3 // (microbatches or 1)}, NAMES[:3]))
    asked: Any = {"source": "estimate", "effort": 0}
    asked |= {"microbatches": microbatches, "loss_weights": "rows"} if microbatches else {}
    baechi.distribute(model, given, cluster=cluster(*NAMES[:3]), split=specs, **asked)
    for network, x in ((model, there(given)), (plain, given)):
        optimizer = torch.optim.Adam(network.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            (network(x) ** 2).sum().backward()
            optimizer.step()
    assert_same(model, plain)


def by_heads(columns: int) -> dict[str, Any]:
    """Shards of so many columns, of which a head has two."""
    size = {"out": columns}, {"in": columns}
    specs = [baechi.BatchSpec(one, device_matrix=NAMES[:3]) for one in size]
    return {"q": specs[0], "k": specs[0], "v": specs[0], "o": specs[1]}


OF_TORCH = {"attention": baechi.BatchSpec({"heads": 4}, device_matrix=NAMES[:3])}
HEADS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], dict[str, Any]]] = {
    "even": (lambda: Attention("fused"), (2, 3, 8), by_heads(2)),
    "uneven, by products": (lambda: Attention("products"), (2, 3, 8), by_heads(6)),
    "torch's own, uneven": (lambda: Attending({}, batch_first=True), ITSELF[0], OF_TORCH),
}


@pytest.mark.parametrize("name", HEADS)
def test_attention_by_heads(toy: ToyMachine, name: str) -> None:
    """Heads stay on the devices that made them, and their sum is what the whole attention returns."""
    toy.restart(seed=8, late=True)
    build, shape, layers = HEADS[name]
    model, plain = twins(build)
    given = torch.randn(shape, dtype=torch.float64)
    baechi.distribute(model, given, cluster=cluster(*NAMES[:3]), split=layers, source="estimate", effort=0)
    assert [one for one in layers if f"{one}[join]" in baechi.plan_of(model).graph] == [list(layers)[-1]]
    found = []
    for network, x in ((model, there(given)), (plain, given.clone())):
        made = network(x.requires_grad_())
        made = made if isinstance(made, tuple) else (made,)
        sum([(one * one).sum() for one in made]).backward()
        found.append([value.detach().cpu() for value in (*made, x.grad)])
    torch.testing.assert_close(*found, rtol=0, atol=TOLERANCE)
    assert_same(model, plain)
    weights: Any = [weight for weight in model.parameters() if isinstance(weight, ShardedWeight)]
    assert all(len({shard.device for shard in weight.shards}) > 1 for weight in weights) and len(weights) > 2


PARTS = ("toy:0/0", "toy:0/1", "toy:1")
STREAMS: dict[str, tuple[tuple[str, ...], bool, int | None]] = {
    "the caller's": (NAMES[:3], True, None),
    "the caller's, in lanes": (NAMES[:3], True, 2),
    "of parts": ((PARTS[2], *PARTS[:2]), False, None),
    "of parts, in lanes": (PARTS, False, 2),
    "both": ((PARTS[2], *PARTS[:2]), True, None),
}


@pytest.mark.parametrize("name", STREAMS)
def test_streams_in_backward(toy: ToyMachine, name: str) -> None:
    """Gradients of shards are added where they were made, though autograd sets no stream of other devices.
    The optimizer's streams come after them, be they those of the forward or not."""
    places, own, microbatches = STREAMS[name]
    toy.restart(seed=9, late=True)
    model, plain = twins(Tied)
    inputs = (words(4, 5), words(4, 5))
    spec = baechi.BatchSpec({"out": 14}, device_matrix=places)
    devices = cluster(*sorted(places))
    asked: Any = {"source": "estimate", "effort": 0, "microbatches": microbatches}
    baechi.distribute(model, inputs, cluster=devices, split={"head": spec}, **asked)
    here, usual = tuple(map(there, inputs)), [torch.accelerator.current_stream(place) for place in NAMES[:3]]
    sides = [torch.Stream(device=place) for place in NAMES[:3]] if own else usual
    toy.synchronize()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    try:
        for _ in range(2):
            compute_on(sides, after=usual)
            model(*here).backward()
            again = model(*here)
            if microbatches is None:  # else all of a step is on the same streams
                compute_on(usual, after=sides)
            again.backward()
            optimizer.step()
            optimizer.zero_grad()
    finally:
        compute_on(usual, after=sides)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.2)
    for _ in range(2):
        optimizer.zero_grad()
        plain(*inputs).backward()
        optimizer.step()
    assert_same(model, plain, grads=False)
