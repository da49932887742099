"""What is right in the first call and something else in a later one; and what no version counter tells."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from run.pipeline.by_loop import assert_same_gradients
from run.pipeline.nets import noise, pipelined, seeded
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM

import baechi
from baechi.errors import BaechiError, BatchCoupled

X, Y = noise(8, 3, 6), noise(8, 3, 6, seed=2)
WHERE = {"": 0, "a": 0, "b": 1}


class Net(nn.Module):
    """Two layers, and what a function makes of the module, their result, and what else the call is given."""

    def __init__(self, makes: Callable[..., Any]) -> None:
        super().__init__()
        self.a, self.b, self.makes = nn.Linear(6, 6), nn.Linear(6, 6), makes
        self.criterion, self.mode = nn.MSELoss(), "mean"
        self.register_buffer("count", torch.zeros(1, dtype=torch.float64))
        self.frozen = nn.Parameter(torch.ones(1, dtype=torch.float64), requires_grad=False)

    def forward(self, x: Tensor, y: Tensor, more: Any = None, **named: Any) -> Any:
        given = () if more is None else (more,)
        return self.makes(self, self.b(self.a(x).tanh()), y, *given, **named)


def both(makes: Callable[..., Any], batch: tuple[Any, ...], **options: Any) -> tuple[Any, Any, Any]:
    """A model in four microbatches, the plain one, and the cluster."""
    model: Any = seeded(lambda: Net(makes))
    plain = copy.deepcopy(model)
    return model, plain, pipelined(model, batch, microbatches=4, device_map=WHERE, **options)


def same_step(model: Any, plain: Any, cluster: Any, *batch: Any, **named: Any) -> None:
    """One step of each, with the same loss and gradients."""
    for network in (model, plain):
        network.zero_grad()
    with cluster:
        found = model(*batch, **named)
        found.backward()
    expected = plain(*batch, **named)
    expected.backward()
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0, equal_nan=True)
    assert_same_gradients(model, plain)


def masked(net: Net, out: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    return ((out - y).square().mean(-1) * mask).sum() / mask.sum()


@pytest.mark.parametrize("kind", [torch.float64, torch.int64, torch.bool])
def test_a_mask_that_was_all_ones(kind: torch.dtype) -> None:
    """As long as it is, nothing tells that it weighs; the first batch where it is not is judged again."""
    full = torch.ones(8, 3, dtype=kind)
    some = full.clone()
    some[:4, 1:] = 0
    model, plain, cluster = both(masked, (X, Y, full))
    for mask in (full, full, some, full, some):
        same_step(model, plain, cluster, X, Y, mask)


def reduced(net: Net, out: Tensor, y: Tensor, reduction: str = "mean") -> Tensor:
    return F.mse_loss(out, y, reduction=reduction)


def switched(net: Net, out: Tensor, y: Tensor, coupled: bool = False) -> Tensor:
    return F.mse_loss(out - out.mean(0) if coupled else out, y)


@pytest.mark.parametrize(
    ("makes", "given"),
    [(reduced, {"reduction": "sum"}), (switched, {"coupled": True})],
    ids=["word", "switch"],
)
def test_an_argument_that_changes(makes: Callable[..., Tensor], given: dict[str, Any]) -> None:
    """A word or a switch that has another value is another kind of call, which is judged first."""
    model, plain, cluster = both(makes, (X, Y))
    usual = {name: ("mean" if isinstance(value, str) else False) for name, value in given.items()}
    for _ in range(2):
        same_step(model, plain, cluster, X, Y, **usual)
    with pytest.raises(BatchCoupled), cluster:
        model(X, Y, **given)
    same_step(model, plain, cluster, X, Y, **usual)


@pytest.mark.parametrize("changed", ["module", "attribute"])
def test_a_setting_that_changes(changed: str) -> None:
    """So is a word or a switch of a module: `criterion.reduction`, `model.mode`."""

    def makes(net: Net, out: Tensor, y: Tensor) -> Tensor:
        return net.criterion(out, y) if net.mode == "mean" else F.mse_loss(out, y, reduction=net.mode)

    model, plain, cluster = both(makes, (X, Y))
    for _ in range(2):
        same_step(model, plain, cluster, X, Y)
    if changed == "module":
        model.criterion.reduction = "sum"
    else:
        model.mode = "sum"
    with pytest.raises(BatchCoupled), cluster:
        model(X, Y)


def test_no_labels_at_all() -> None:
    """The mean over none is no number, as without microbatches, whenever such a batch comes."""

    def makes(net: Net, out: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(out.flatten(0, 1), y.flatten())

    some = torch.arange(24).reshape(8, 3) % 6
    some[:2] = -100
    none = torch.full((8, 3), -100)
    model, plain, cluster = both(makes, (X, some))
    for labels in (some, some, none, none, some):
        same_step(model, plain, cluster, X, labels)


LISTS: list[Callable[[Tensor], list[Any]]] = [
    lambda out: list(range(len(out))),
    lambda out: [f"row {index}" for index in range(len(out))],
    lambda out: [{"index": index, "made": row} for index, row in enumerate(out)],
    lambda out: [float(index) for index in range(len(out))],
]


@pytest.mark.parametrize("number", range(len(LISTS)))
def test_lists_that_number_rows(number: int) -> None:
    """Values of Python that parts give otherwise are not joined."""

    def makes(net: Net, out: Tensor, y: Tensor) -> Any:
        return {"scores": out, "numbered": LISTS[number](out)}

    model, plain, cluster = both(makes, (X, Y))
    with torch.no_grad(), cluster:
        found, expected = model.eval()(X, Y), plain.eval()(X, Y)
    torch.testing.assert_close(found["scores"], expected["scores"], rtol=1e-12, atol=0)
    with pytest.raises(BaechiError, match="the output numbered "):
        len(found["numbered"])


def test_lists_of_rows() -> None:
    """Those that parts give as the whole does are joined, with whatever is in them."""

    def makes(net: Net, out: Tensor, y: Tensor) -> Any:
        return {"scores": out, "found": [{"label": int(row.argmax()), "row": row} for row in out]}

    model, plain, cluster = both(makes, (X, Y))
    with torch.no_grad(), cluster:
        found, expected = model.eval()(X, Y)["found"], plain.eval()(X, Y)["found"]
    assert [one["label"] for one in found] == [one["label"] for one in expected]


def test_shapes_and_types_among_outputs() -> None:
    """What all parts give alike is given; a shape that is that of a part is not."""

    def makes(net: Net, out: Tensor, y: Tensor) -> Any:
        return {"loss": F.mse_loss(out, y), "kind": out.dtype, "inner": out.shape[1:], "shape": out.shape}

    model, _, cluster = both(makes, (X, Y))
    with cluster:
        found = model(X, Y)
        found["loss"].backward()
    assert found["kind"] is torch.float64 and found["inner"] == torch.Size([3, 6])
    with pytest.raises(BaechiError, match="the output shape "):
        len(found["shape"])


WRITES: dict[str, Callable[[Net], object]] = {
    "a buffer": lambda net: net.count.data.add_(1),
    "a buffer, replaced": lambda net: setattr(net.count, "data", net.count + 1),
    "a weight": lambda net: net.frozen.data.mul_(2),
}


@pytest.mark.parametrize("what", WRITES)
def test_writes_through_data(what: str) -> None:
    """Torch does not count them, so they are refused by name, and the look leaves nothing behind."""

    def makes(net: Net, out: Tensor, y: Tensor) -> Tensor:
        WRITES[what](net)
        return F.mse_loss(out, y)

    model, _, cluster = both(makes, (X, Y))
    before = model.count.item(), model.frozen.item()
    with pytest.raises(BaechiError, match=r"is written through \.data"), cluster:
        model(X, Y)
    assert (model.count.item(), model.frozen.item()) == before


def test_data_that_is_only_read() -> None:
    """Is no write."""
    model, plain, cluster = both(lambda net, out, y: F.mse_loss(out * net.frozen.data, y), (X, Y))
    same_step(model, plain, cluster, X, Y)


@pytest.mark.parametrize("warm", [False, True])
def test_hidden_states_that_are_asked_for_later(warm: bool) -> None:
    """Transformers registers hooks in the first call that asks; each microbatch did, and had them all."""
    sizes = dict(vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=2)
    config = LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=1)
    ids = torch.randint(3, 40, (8, 5), generator=torch.Generator().manual_seed(0))
    given = {"input_ids": ids, "labels": ids, "use_cache": False}
    model: Any = seeded(lambda: LlamaForCausalLM(config).double())
    plain, cluster = copy.deepcopy(model), baechi.Cluster.virtual(2)
    baechi.distribute(model, given, cluster=cluster, microbatches=4, placer="round-robin")
    with cluster:
        for _ in range(warm):
            model(**given)
        for _ in range(2):
            found = model(**given, output_hidden_states=True).hidden_states
            expected = plain(**given, output_hidden_states=True).hidden_states
            assert len(found) == len(expected) == 3
            for one, other in zip(found, expected, strict=True):
                torch.testing.assert_close(one, other.detach(), rtol=1e-10, atol=1e-12)


def test_hooks_that_forward_registers() -> None:
    """Those of others are refused: each microbatch would register its own."""

    def makes(net: Net, out: Tensor, y: Tensor) -> Tensor:
        if net.mode == "mean":
            net.mode = "hooked"
            net.a.register_forward_hook(lambda module, args, output: output * 2)
        return F.mse_loss(net.b(net.a(y)), y) + out.mean()

    model, _, cluster = both(makes, (X, Y))
    with pytest.raises(BaechiError, match="forward registers hooks"), cluster:
        model(X, Y)
    assert not model.a._forward_hooks


def test_layers_that_compute_with_what_they_write() -> None:
    """Spectral norm moves with each microbatch; the error names its buffers, since no row is to blame."""

    def build() -> nn.Module:
        net = Net(lambda net, out, y: F.mse_loss(out, y))
        nn.utils.parametrizations.spectral_norm(net.a)
        return net

    model: Any = seeded(build)
    cluster = pipelined(model, (X, Y), microbatches=4, device_map=WHERE)
    with pytest.raises(BatchCoupled) as caught, cluster:
        for number in range(4):
            model(X, Y).backward()
            with torch.no_grad():
                for weight in model.parameters():
                    weight += noise(*weight.shape, seed=number).to(weight.device)
    assert any("a.parametrizations.weight.0._u" in note for note in caught.value.__notes__)


@pytest.mark.parametrize(
    ("shares", "said"), [(lambda parts: [1.0], r"returned \[1.0\]"), (lambda parts: None, "returned None")]
)
def test_loss_weights_that_are_none(shares: Any, said: str) -> None:
    """A list with a number for each microbatch is what is asked for."""
    with pytest.raises(BaechiError, match=said):
        model, _, cluster = both(lambda net, out, y: F.mse_loss(out, y), (X, Y), loss_weights=shares)
        with cluster:
            model(X, Y)


def test_sparse_inputs_are_not_divided() -> None:
    """They go whole, or the error says so."""

    def makes(net: Net, out: Tensor, y: Tensor, more: Tensor) -> Tensor:
        return F.mse_loss(out, y) + more.to_dense().mean()

    batch = (X, Y, torch.eye(8, dtype=torch.float64).to_sparse())
    with pytest.raises(ValueError, match="is sparse, and is not divided"):
        both(makes, batch)
    model, plain, cluster = both(makes, batch, split={"more": None})
    same_step(model, plain, cluster, *batch)
