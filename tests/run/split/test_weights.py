"""From outside a sharded weight is one Parameter: what trains, copies, saves, loads it sees one tensor."""

import copy
import io
import pickle
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from run.split.split_layers import (
    TOLERANCE,
    Around,
    Tied,
    assert_same,
    split_on,
    tied_on_devices,
    twins,
    words,
)
from safetensors.torch import load_file, save_file
from torch import nn, optim
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import baechi
from baechi.errors import ShardedTensorError
from baechi.torchlib.shards.weight import ShardedWeight

pytestmark = pytest.mark.default_cases(2)

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda p, **k: optim.SGD(p, lr=0.1, momentum=0.9, **k),
    "adam": lambda p, **k: optim.Adam(p, lr=0.1, amsgrad=True, **k),
    "adamw": lambda p, **k: optim.AdamW(p, lr=0.1, **k),
    "rmsprop": lambda p, **k: optim.RMSprop(p, lr=0.1, **k),
    "adagrad": lambda p, **k: optim.Adagrad(p, lr=0.1, **k),
    "nadam": lambda p, **k: optim.NAdam(p, lr=0.1, **k),
    "radam": lambda p, **k: optim.RAdam(p, lr=0.1, **k),
    "adamax": lambda p, **k: optim.Adamax(p, lr=0.1, **k),
    "adadelta": lambda p, **k: optim.Adadelta(p, lr=0.1, **k),
    "asgd": lambda p, **k: optim.ASGD(p, lr=0.1, **k),
}


def steps(model: nn.Module, inputs: Any, optimizer: torch.optim.Optimizer, count: int = 3) -> list[float]:
    """Train, with clipped gradients; the losses."""
    losses = []
    for _ in range(count):
        optimizer.zero_grad()
        loss = model(*inputs)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(name: str, foreach: bool) -> None:
    """Steps are those of the whole weight; half of them on an emulated cluster, half without its clock."""
    model, plain, cluster, inputs = tied_on_devices()
    one, other = (OPTIMIZERS[name](m.parameters(), foreach=foreach) for m in (model, plain))
    with cluster:
        losses = steps(model, inputs, one)
    losses += steps(model, inputs, one)
    torch.testing.assert_close(losses, steps(plain, inputs, other, 6), rtol=0, atol=TOLERANCE)
    assert_same(model, plain)


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw", "adagrad"])
def test_fused_optimizers(name: str) -> None:
    """One native call a device does the same."""
    model, plain, cluster, inputs = tied_on_devices()
    one, other = (OPTIMIZERS[name](m.parameters(), fused=True) for m in (model, plain))
    with cluster:
        losses = steps(model, inputs, one)
    torch.testing.assert_close(losses, steps(plain, inputs, other), rtol=0, atol=TOLERANCE)
    assert_same(model, plain)


@pytest.mark.parametrize("told", [True, False])
def test_an_optimizer_made_before(told: bool) -> None:
    """State that exists when the weight is split goes on beside its shards; `restore` makes it whole."""
    model, plain = twins(Tied)
    inputs = (words(2, 5), words(2, 5))
    one, other = (optim.Adam(m.parameters(), lr=0.1) for m in (model, plain))
    steps(model, inputs, one)
    steps(plain, inputs, other)
    cluster = baechi.Cluster.virtual(2, memory="1GiB")
    spec = baechi.BatchSpec({"out": 21}, device_matrix=[0, 1])
    baechi.distribute(
        model, inputs, cluster=cluster, split={"head": spec}, effort=0, optimizer=one if told else None
    )
    assert one.param_groups[0]["params"][0] is model.embed.weight
    with cluster:
        steps(model, inputs, one)
    steps(plain, inputs, other)
    assert_same(model, plain)
    for state in one.state.values():
        assert all(isinstance(value, ShardedWeight) or value.numel() < 41 for value in state.values())
        break
    baechi.restore(model)
    steps(model, inputs, one)
    steps(plain, inputs, other)
    assert_same(model, plain)
    assert type(model.head.weight) is nn.Parameter and not vars(model.head.weight)


def test_it_is_the_same_parameter() -> None:
    """Object, keys, shapes, ties and the module tree stay as they were, on the way there and back."""
    model, _ = twins(Tied)
    weight, names = model.head.weight, [name for name, _ in model.named_parameters()]
    modules, keys = list(model.modules()), list(model.state_dict())
    weight.note = "mine"
    inputs = (words(2, 5), words(2, 5))
    cluster = baechi.Cluster.virtual(2, memory="1GiB")
    baechi.distribute(model, inputs, cluster=cluster, split={"embed": 2}, effort=0)
    for _ in range(2):
        assert model.head.weight is weight and model.embed.weight is weight and weight.note == "mine"
        assert isinstance(weight, nn.Parameter) and weight.is_leaf and weight.requires_grad
        assert weight.shape == (41, 6) and weight.dtype == torch.float64
        assert [name for name, _ in model.named_parameters()] == names
        assert list(model.modules()) == modules and list(model.state_dict()) == keys
        if isinstance(weight, ShardedWeight):
            baechi.restore(model)
    assert type(weight) is nn.Parameter


def test_files() -> None:
    """A checkpoint of a split model is a plain one, bit for bit, and loads on either side."""
    model, plain, cluster, inputs = tied_on_devices()
    steps(model, inputs, optim.SGD(model.parameters(), lr=0.1))
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    assert all(type(value) is torch.Tensor for value in saved.values())
    assert (
        saved["head.weight"].untyped_storage().data_ptr()
        == saved["embed.weight"].untyped_storage().data_ptr()
    )
    plain.load_state_dict(saved)
    assert torch.equal(plain.head.weight, model.head.weight.cpu())
    steps(plain, inputs, optim.SGD(plain.parameters(), lr=0.1))
    model.load_state_dict(plain.state_dict())
    assert isinstance(model.head.weight, ShardedWeight)
    assert torch.equal(plain.head.weight, model.head.weight.cpu())
    model.load_state_dict(model.state_dict())
    plain.load_state_dict(model.state_dict())
    with cluster:
        assert model(*inputs).item() == pytest.approx(plain(*inputs).item(), abs=TOLERANCE)


def test_assigned_weights_are_split_again() -> None:
    """`load_state_dict(assign=True)` puts whole weights into the model; its next call cuts them."""
    model, plain, cluster, inputs = tied_on_devices()
    steps(plain, inputs, optim.SGD(plain.parameters(), lr=0.1))
    model.load_state_dict(copy.deepcopy(plain.state_dict()), assign=True)
    with cluster:
        assert model(*inputs).item() == pytest.approx(plain(*inputs).item(), abs=TOLERANCE)
    assert isinstance(model.head.weight, ShardedWeight)


def test_optimizer_state_in_files() -> None:
    """An optimizer's state is saved whole and loaded in shards; no device holds the whole in between."""
    model, plain, cluster, inputs = tied_on_devices()
    one, other = (optim.Adam(m.parameters(), lr=0.1) for m in (model, plain))
    with cluster:
        steps(model, inputs, one)
    steps(plain, inputs, other)
    file = io.BytesIO()
    torch.save(one.state_dict(), file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    again, beside = (optim.Adam(m.parameters(), lr=0.1) for m in (model, plain))
    again.load_state_dict(saved)
    assert isinstance(again.state[model.head.weight]["exp_avg"], ShardedWeight)
    beside.load_state_dict(copy.deepcopy(saved))
    again.load_state_dict(again.state_dict())
    with cluster:
        steps(model, inputs, again)
    steps(plain, inputs, beside)
    assert_same(model, plain)


def test_safetensors(tmp_path: Path) -> None:
    """`baechi.load` fills the shards; saving goes by a copy on the host."""
    model, plain, _, inputs = tied_on_devices()
    steps(plain, inputs, optim.SGD(plain.parameters(), lr=0.1))
    state = {name: value.clone() for name, value in plain.state_dict().items()}
    save_file(state, tmp_path / "model.safetensors")
    baechi.load(model, tmp_path / "model.safetensors")
    assert_same(model, plain, grads=False)
    save_file(
        {name: value.cpu() for name, value in model.state_dict().items() if name != "head.weight"},
        tmp_path / "back.safetensors",
    )
    assert torch.equal(load_file(tmp_path / "back.safetensors")["embed.weight"], plain.embed.weight)


def test_weights_on_meta(tmp_path: Path) -> None:
    """Weights that are nowhere yet are loaded shard by shard."""
    _, plain = twins(Tied)
    inputs = (words(2, 5), words(2, 5))
    save_file({name: value.clone() for name, value in plain.state_dict().items()}, tmp_path / "w.safetensors")
    with torch.device("meta"):
        model = Tied().double()
    cluster = baechi.Cluster.virtual(2, memory="1GiB")
    baechi.distribute(model, inputs, cluster=cluster, split={"head": 3}, effort=0)
    with pytest.raises(baechi.BaechiError, match=r"head\.weight; load them"):
        model(*inputs)
    baechi.load(model, tmp_path / "w.safetensors")
    with cluster:
        model(*inputs).backward()
    plain(*inputs).backward()
    assert_same(model, plain)
    assert isinstance(model.head.weight, ShardedWeight) and model.head.weight is model.embed.weight


def test_saved_plans(tmp_path: Path) -> None:
    """A plan's file has its shards, and goes with models of the same sizes only."""
    split, _, cluster, inputs = tied_on_devices()
    baechi.plan_of(split).save(tmp_path / "plan.json")
    model, plain = twins(Tied)
    baechi.assign(model, tmp_path / "plan.json", cluster=cluster)
    with cluster:
        model(*inputs).backward()
    plain(*inputs).backward()
    assert_same(model, plain)
    with pytest.raises(baechi.PlanError, match=r"\(43, 6\): the plan cuts 41 along axis 0"):
        baechi.assign(twins(lambda: Tied(43))[0], tmp_path / "plan.json")


def test_one_device() -> None:
    """All shards on one device are right, too."""
    model, plain = twins(Tied)
    inputs = (words(2, 5), words(2, 5))
    with split_on(1, model, inputs, {"head": 3}):
        model(*inputs).backward()
    plain(*inputs).backward()
    assert_same(model, plain)


def test_copies() -> None:
    """A deep copy and a pickle have shards of their own, train by themselves, and keep the tie."""
    model, plain, cluster, inputs = tied_on_devices()
    with cluster:
        model(*inputs).backward()
        copied = copy.deepcopy(model)
    assert all(weight.grad is None for weight in copied.parameters())  # as of plain models
    for other in (copied, pickle.loads(pickle.dumps(model))):
        assert other.head.weight is other.embed.weight and other.head.weight is not model.head.weight
        with cluster:
            other.zero_grad()
            assert other(*inputs).item() == pytest.approx(plain(*inputs).item(), abs=TOLERANCE)
            steps(other, inputs, optim.SGD(other.parameters(), lr=0.1))
        assert isinstance(other.head.weight, ShardedWeight)
    assert_same(model, plain, grads=False)


@pytest.mark.parametrize("transform", [torch.func.vmap, torch.func.jacrev], ids=["vmap", "jacrev"])
def test_transforms_are_refused(transform: Any) -> None:
    """Sharded weights have no rule for them; the error says what to do."""
    model: Any = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5))
    cluster, x = baechi.Cluster.virtual(2), torch.ones(4, 6)
    baechi.distribute(model, x, cluster=cluster, split={"2": 2})
    with pytest.raises(ShardedTensorError, match=r"baechi\.restore"), cluster:
        transform(model)(x)


def test_averages() -> None:
    """An exponential average of weights is sharded, too."""
    model, plain, _, inputs = tied_on_devices()
    averages = [AveragedModel(m, multi_avg_fn=get_ema_multi_avg_fn(0.9)) for m in (model, plain)]
    for network, average in zip((model, plain), averages, strict=True):
        optimizer = optim.SGD(network.parameters(), lr=0.1)
        for _ in range(3):
            steps(network, inputs, optimizer, 1)
            average.update_parameters(network)
    assert_same(averages[0].module, averages[1].module, grads=False)


def test_hooks_and_gradients() -> None:
    """Hooks on the weight fire once with the whole gradient; `autograd.grad` finds it, also twice."""
    model, plain, cluster, inputs = tied_on_devices()
    seen: dict[str, list[torch.Tensor]] = {"grad": [], "after": []}
    model.head.weight.register_hook(lambda grad: seen["grad"].append(grad))
    model.head.weight.register_post_accumulate_grad_hook(lambda weight: seen["after"].append(weight))
    plain(*inputs).backward()
    with cluster:
        model(*inputs).backward()
    assert len(seen["grad"]) == 1 and seen["after"] == [model.head.weight]
    torch.testing.assert_close(seen["grad"][0].cpu(), plain.head.weight.grad, rtol=0, atol=TOLERANCE)
    for network in (model, plain):
        network.zero_grad()
    found = []
    for network in (model, plain):
        (grad,) = torch.autograd.grad(network(*inputs), network.head.weight, create_graph=True)
        (grad * grad).sum().backward()
        found.append(grad.detach().cpu())
    torch.testing.assert_close(*found, rtol=0, atol=TOLERANCE)
    assert_same(model, plain)


def test_assigned_state_stays_tied() -> None:
    """`assign=True` makes two parameters of one memory, as it does of a model that is not split."""
    model, plain, _, inputs = tied_on_devices()
    state = copy.deepcopy(plain.state_dict())
    for network in (model, plain):
        network.load_state_dict(copy.deepcopy(state), assign=True)
        assert network.head.weight is not network.embed.weight
        optimizer = optim.SGD(network.parameters(), lr=0.1)
        steps(network, inputs, optimizer)
        assert torch.equal(network.head.weight.detach().cpu(), network.embed.weight.detach().cpu())
    assert isinstance(model.head.weight, ShardedWeight)
    assert_same(model, plain)


def test_scaled_gradients() -> None:
    """A `GradScaler` unscales shards, and skips a step where one of them is not finite."""
    model, plain, _, inputs = tied_on_devices()
    for network in (model, plain):
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        optimizer = optim.SGD(network.parameters(), lr=0.1)
        for number in range(3):
            optimizer.zero_grad()
            scaler.scale(network(*inputs)).backward()
            if number == 1:
                weight = network.head.weight.grad
                (weight.shards[2] if isinstance(weight, ShardedWeight) else weight)[-1, 0] = torch.inf
            scaler.step(optimizer)
            scaler.update()
        assert scaler.get_scale() == 4.0
    assert_same(model, plain, grads=False)


def test_scaled_gradients_on_a_cluster() -> None:
    """The same where shards, and what the scaler notes, lie on several emulated devices."""
    model, plain, cluster, inputs = tied_on_devices()
    for network, around in ((model, cluster), (plain, nullcontext())):
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        optimizer = optim.SGD(network.parameters(), lr=0.1)
        with around:
            scaler.scale(network(*inputs)).backward()
            scaler.step(optimizer)
            scaler.update()
    assert_same(model, plain, grads=False)


def test_cast_with_gradients() -> None:
    """`float()` takes gradients along; the same weights stay."""
    model, plain, _, inputs = tied_on_devices()
    weights = list(model.parameters())
    for network in (model, plain):
        network(*inputs).backward()
        network.float()
    assert all(one is other for one, other in zip(model.parameters(), weights, strict=True))
    assert {weight.dtype for weight in weights} == {torch.float32}
    assert_same(model, plain, tolerance=1e-6)


def test_anomaly_mode() -> None:
    """Torch looks for gradients that are no numbers, shard by shard."""
    model, plain, cluster, inputs = tied_on_devices()
    with cluster, pytest.warns(UserWarning, match="Anomaly"), torch.autograd.detect_anomaly():
        model(*inputs).backward()
        with pytest.raises(RuntimeError, match="returned nan"):
            (model(*inputs) * torch.nan).backward()
    plain(*inputs).backward()
    model.zero_grad()
    model(*inputs).backward()
    assert_same(model, plain)


def test_frozen_and_filled() -> None:
    """`requires_grad_`, `nn.init`, `zero_grad(set_to_none=False)`, accumulation, writes without history."""
    model, plain, _, inputs = tied_on_devices()
    for network in (model, plain):
        weight = network.head.weight
        torch.manual_seed(4)
        nn.init.xavier_uniform_(weight)
        nn.init.normal_(network.middle.weight)
        with torch.no_grad():
            weight.mul_(2).add_(torch.arange(6.0, dtype=torch.float64))
            weight.data.clamp_(-1, 1)
        network(*inputs).backward()
        network(*inputs).backward()
    assert_same(model, plain)
    for network in (model, plain):
        network.zero_grad(set_to_none=False)
        network.head.weight.requires_grad_(False)
        network(*inputs).backward()
    assert_same(model, plain)


def test_a_write_before_backward_is_seen() -> None:
    """A weight that an optimizer wrote between forward and backward raises, as a whole one does."""
    for way in ("loop", "foreach", "fused"):
        model, _, _, inputs = tied_on_devices()
        optimizer = optim.Adam(model.parameters(), lr=0.1, **({} if way == "loop" else {way: True}))
        steps(model, inputs, optimizer, 1)
        loss = model(*inputs)
        optimizer.step()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_a_second_save_has_the_new_values() -> None:
    """What a file holds is what the weight is now, though the first file's tensors are alive."""
    for foreach in (False, True):
        model, _, _, inputs = tied_on_devices()
        optimizer = optim.SGD(model.parameters(), lr=0.1, foreach=foreach)
        first = pickle.loads(pickle.dumps(model.head.weight))
        steps(model, inputs, optimizer, 1)
        second = pickle.loads(pickle.dumps(model.head.weight))
        assert not torch.equal(first, second) and torch.equal(second, model.head.weight.cpu())


def test_a_graph_across_the_split_raises() -> None:
    """A backward through the weight as it was before it was split, or joined, would lose its gradient."""
    model, _ = twins(Tied)
    inputs = (words(2, 5), words(2, 5))
    loss = model(*inputs)
    cluster = baechi.Cluster.virtual(2, memory="1GiB")
    baechi.distribute(model, inputs, cluster=cluster, split={"head": 2}, effort=0)
    with pytest.raises(baechi.BaechiError, match="before its model was distributed"):
        loss.backward()
    loss = model(*inputs)
    baechi.restore(model)
    with pytest.raises((baechi.BaechiError, RuntimeError)):
        loss.backward()


REFUSED: dict[str, Callable[[nn.Parameter], Any]] = {
    "to one device": lambda w: w.to("meta"),
    "rows": lambda w: w[3],
    "flat": lambda w: w.view(-1),
    "reshaped": lambda w: w.reshape(6, 41),
    "transposed": lambda w: w.t(),
    "product": lambda w: torch.zeros(2, 41, dtype=torch.float64) @ w,
    "functional": lambda w: nn.functional.linear(torch.zeros(2, 6, dtype=torch.float64), w),
    "looked up": lambda w: nn.functional.embedding(torch.zeros(2, dtype=torch.long), w),
    "softmax": lambda w: w.softmax(-1),
    "argmax": lambda w: w.argmax(-1),
    "topk": lambda w: w.topk(2),
    "row norms": lambda w: w.norm(dim=-1),
    "larger": lambda w: w + torch.zeros(2, 41, 6, dtype=torch.float64),
    "orthogonal": lambda w: nn.init.orthogonal_(w),
    "shared memory": lambda w: w.share_memory_(),
    "storage": lambda w: w.untyped_storage(),
    "written into a whole": lambda w: torch.zeros(41, 6, dtype=torch.float64).add_(w.detach()),
    "vector": lambda w: nn.utils.parameters_to_vector([w]),
    "vmap": lambda w: torch.vmap(lambda row: row.sum())(w),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused_with_a_cure(what: str) -> None:
    """What would need the whole on one device says so, and what to do."""
    model, _, _, _ = tied_on_devices()
    with pytest.raises(ShardedTensorError, match=r"is sharded.*leave its layer out of split="):
        REFUSED[what](model.head.weight)


WIDE, DEEP = torch.ones(11, 4), torch.ones(2, 11, 1)
WIDER: dict[str, Callable[[torch.Tensor], Any]] = {
    "sum": lambda w: w + WIDE,
    "sum, the other way": lambda w: WIDE + w,
    "between": lambda w: torch.lerp(w, w, WIDE),
    "chosen": lambda w: torch.where(WIDE > 0, w, 0.0),
    "in a list": lambda w: torch._foreach_add([w], [WIDE]),
    "in a list, of more axes": lambda w: torch._foreach_mul([w], [DEEP]),
    "list of three": lambda w: torch._foreach_addcmul([w], [w], [DEEP]),
}


@pytest.fixture(scope="module")
def column() -> torch.Tensor:
    """A weight in three shards, of one column."""
    model, _ = twins(lambda: Around(nn.Linear(1, 11)))
    split_on(3, model, torch.ones(2, 1, dtype=torch.float64), {"layer": 3})
    weight: torch.Tensor = model.float().layer.weight.detach()
    return weight


@pytest.mark.parametrize("what", WIDER)
def test_results_wider_than_the_weight(what: str, column: torch.Tensor) -> None:
    """A column, and an operand that makes it wider: the result would lie along another axis."""
    assert WIDER[what](column.cpu()) is not None
    with pytest.raises(ShardedTensorError, match=r"has another shape than|on a tensor of shape"):
        WIDER[what](column)


class Untied(Tied):
    """As many words as `Tied`, in two weights."""

    def __init__(self) -> None:
        super().__init__()
        self.head.weight = nn.Parameter(self.head.weight.detach().flip(0))


@pytest.mark.parametrize("split", [{"head": 4, "embed": 2}, {"head": {"in": 2}, "embed": 2}])
@pytest.mark.parametrize("one, other", [("head", "embed"), ("embed", "head")])
def test_tied_after_the_split(split: Any, one: str, other: str) -> None:
    """Of layers that are cut otherwise the error names both cuts; those that are cut alike may be tied."""
    (model, plain), batch = twins(Untied), (words(2, 5), words(2, 5))
    for layers in ({"head": 3, "embed": 3}, split):
        cluster = split_on(2, model, batch, layers)
        for network in (model, plain):
            getattr(network, one).weight = getattr(network, other).weight
        if layers is split:
            with pytest.raises(ShardedTensorError, match=r"cut elsewhere.*tie weights before"), cluster:
                model(*batch)
            continue
        with cluster:
            model(*batch).backward()
        plain(*batch).backward()
        assert_same(model, plain)
        baechi.restore(model)
        getattr(model, one).weight = nn.Parameter(getattr(model, one).weight.detach().clone())


@pytest.mark.parametrize("kind", ["LBFGS", "Adafactor", "Muon", "Rprop"])
def test_optimizers_that_need_the_whole(kind: str) -> None:
    """They raise at their first step, and change nothing before."""
    model, plain, _, inputs = tied_on_devices()
    optimizer = getattr(torch.optim, kind)([model.head.weight])

    def closure() -> Any:
        optimizer.zero_grad()
        loss = model(*inputs)
        loss.backward()
        return loss

    with pytest.raises(ShardedTensorError):
        optimizer.step(closure)
    assert_same(model, plain, grads=False)
