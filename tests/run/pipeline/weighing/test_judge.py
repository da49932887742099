"""Microbatches train what the whole batch trains, or an error says that they do not."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from run.pipeline.by_loop import assert_same_gradients
from run.pipeline.nets import noise, pipelined, seeded
from torch import Tensor, nn
from torch.nn import functional as F

from baechi.errors import BaechiError, BatchCoupled

X, Y = noise(8, 6), noise(8, 6, seed=2)
CLASSES = torch.tensor([0, 1, 2, 3, 4, 5, 0, 0])
IGNORED = torch.tensor([-100, -100, -100, 3, 4, 5, 0, 0])
WEIGHTS = torch.tensor([0.1, 3.0, 1.0, 2.0, 0.5, 4.0], dtype=torch.float64)
WHERE = {"": 0, "a": 0, "b": 1}


class Net(nn.Module):
    """Two layers, and what a function makes of their result."""

    def __init__(self, makes: Callable[..., Any], *, zero: bool = False) -> None:
        super().__init__()
        self.a, self.b, self.makes = nn.Linear(6, 6), nn.Linear(6, 6), makes
        self.gate = nn.Parameter(torch.zeros(1))
        for weight in self.b.parameters() if zero else ():
            nn.init.zeros_(weight)

    def forward(self, x: Tensor, *more: Any) -> Any:
        return self.makes(self.b(self.a(x).tanh()), *more, *([self.gate] if self.makes is gated else []))


def own(value: Any) -> Any:
    return value


def stepped(
    model: nn.Module,
    batch: tuple[Any, ...],
    loss: Callable[[Any], Tensor] = own,
    *,
    microbatches: int = 4,
    **options: Any,
) -> Any:
    """A step of a model in microbatches has the loss and the gradients of the whole; returns its result."""
    plain = copy.deepcopy(model)
    options = {"device_map": WHERE, **options}
    with pipelined(model, copy.deepcopy(batch), microbatches=microbatches, **options):
        found = model(*batch)
        loss(found).sum().backward()
    expected = plain(*copy.deepcopy(batch))
    loss(expected).sum().backward()
    torch.testing.assert_close(loss(found), loss(expected), rtol=1e-12, atol=0)
    assert_same_gradients(model, plain)
    return found


def the_loss(result: Any) -> Any:
    return result["loss"] if isinstance(result, dict) else result[0]


@pytest.mark.parametrize("microbatches", [4, 8])
@pytest.mark.parametrize(("kind", "shape"), [(tuple, (1,)), (dict, (1, 1)), (Tensor, (1,)), (Tensor, (1, 1))])
def test_a_loss_is_one_element(kind: type, shape: tuple[int, ...], microbatches: int) -> None:
    """Whatever its shape, where it is, and how it is reduced; also where each part is one row."""

    def makes(made: Tensor, y: Tensor) -> Any:
        loss = (F.mse_loss(made, y, reduction="sum") / 40).reshape(shape)
        return {"loss": loss, "made": made} if kind is dict else (loss, made) if kind is tuple else loss

    stepped(
        seeded(lambda: Net(makes)), (X, Y), own if kind is Tensor else the_loss, microbatches=microbatches
    )


class Recurrent(nn.Module):
    """In torch's default layout: time first."""

    def __init__(self, kind: type) -> None:
        super().__init__()
        self.a, self.b = kind(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x)[0])


def square(result: Tensor) -> Tensor:
    return result.pow(3).mean() + result.square().mean()


@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM, nn.RNN])
def test_time_first(kind: type) -> None:
    """A sequence is no batch: the error names the dimension that is."""
    with pytest.raises(BatchCoupled, match=r"split={'x': 1} gives the same"):
        stepped(seeded(lambda: Recurrent(kind)), (noise(8, 4, 6),), square)
    stepped(seeded(lambda: Recurrent(kind)), (noise(3, 8, 6),), square, split={"x": 1})


def standardized(made: Tensor) -> Tensor:
    return (made - made.mean(0)) / made.std(0)


def over_rows(made: Tensor) -> Tensor:
    return made.softmax(0)


def centered(made: Tensor) -> Tensor:
    return made - made.mean()


@pytest.mark.parametrize("makes", [standardized, over_rows, centered])
def test_outputs_whose_rows_know_each_other(makes: Callable[[Tensor], Tensor]) -> None:
    """The loss is the caller's, so outputs are compared, in training and in evaluation."""
    with pytest.raises(BatchCoupled):
        stepped(seeded(lambda: Net(makes)), (X,), square)
    with pytest.raises(BatchCoupled), torch.no_grad():
        stepped(seeded(lambda: Net(makes)).eval(), (X,), square)


@pytest.mark.parametrize(
    "makes", [lambda made: made.argsort(0), lambda made: torch.arange(len(made)), lambda made: made.cumsum(0)]
)
@pytest.mark.parametrize("beside", [False, True])
def test_outputs_that_sort_or_number_rows(makes: Callable[[Tensor], Tensor], beside: bool) -> None:
    """Alone they are refused; beside others they raise when they are read."""
    model = seeded(lambda: Net(lambda made: {"made": made, "number": makes(made)} if beside else makes(made)))
    plain = copy.deepcopy(model.eval())
    with pipelined(model, (X,), microbatches=4, device_map=WHERE), torch.no_grad():
        if not beside:
            with pytest.raises(BatchCoupled):
                model(X)
            return
        found = model(X)
    torch.testing.assert_close(found["made"], plain(X)["made"])
    for use in (
        lambda: found["number"] + 1,
        lambda: F.relu(found["number"]),
        lambda: torch.stack([found["number"]]),
    ):
        with pytest.raises(BaechiError, match="number"):
            use()


def with_sum(made: Tensor, y: Tensor) -> Any:
    return {"loss": F.mse_loss(made, y), "loss_sum": F.mse_loss(made, y, reduction="sum")}


def with_aux(made: Tensor, y: Tensor) -> Any:
    return {"loss": F.cross_entropy(made, y), "aux_loss": made.square().mean(), "scale": made.square().sum()}


def with_norm(made: Tensor, y: Tensor) -> Any:
    return {"loss": F.cross_entropy(made, y), "z_loss": made.norm()}


@pytest.mark.parametrize(("makes", "y"), [(with_sum, Y), (with_aux, IGNORED), (with_norm, IGNORED)])
def test_numbers_beside_the_loss(makes: Callable[..., Any], y: Tensor) -> None:
    """Each is joined by evidence of its own, or raises when it is read."""
    model = seeded(lambda: Net(makes))
    expected = copy.deepcopy(model)(X, y)
    found = stepped(model, (X, y), the_loss)
    for name in expected.keys() - {"z_loss"}:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-12, atol=0)
    if "z_loss" in expected:
        with pytest.raises(BaechiError, match="z_loss"):
            float(found["z_loss"])


def appends(made: Tensor, items: list[Tensor]) -> Tensor:
    items.append(made.detach())
    return made.square().mean()


def assigns(made: Tensor, items: dict[str, Any]) -> Tensor:
    items["kept"] = {"made": made.detach()}
    return made.square().mean()


class Store:
    """A cache."""

    def __init__(self) -> None:
        self.kept: list[Tensor] = []


def stores(made: Tensor, store: Store) -> Tensor:
    store.kept.append(made.detach())
    return made.square().mean()


@pytest.mark.parametrize(("makes", "given"), [(appends, list), (assigns, dict), (stores, Store)])
def test_what_forward_writes_into_what_it_is_given_is_refused(
    makes: Callable[..., Any], given: Callable[[], Any]
) -> None:
    """By name, before anything trains; it is as it was handed in."""
    model, handed = seeded(lambda: Net(makes)), given()
    before = copy.deepcopy(vars(handed) if isinstance(handed, Store) else handed)
    with (
        pipelined(model, (X, given()), microbatches=4, device_map=WHERE),
        pytest.raises(BaechiError, match=rf"forward writes to 1, a {given.__name__}.*baechi.unsplit"),
    ):
        model(X, handed)
    assert (vars(handed) if isinstance(handed, Store) else handed) == before
    assert all(weight.grad is None for weight in model.parameters())


def takes(made: Tensor, items: dict[str, Any]) -> Tensor:
    return F.mse_loss(made, items.pop("y")) * items.setdefault("by", [2.0]).pop()


def test_what_forward_takes_out_is_each_microbatchs_own() -> None:
    """It changes nothing for the others, and nothing for the caller."""
    items = {"y": Y, "by": [3.0]}
    stepped(seeded(lambda: Net(takes)), (X, items))
    assert items == {"y": Y, "by": [3.0]}


def test_a_cache_with_rows_is_refused() -> None:
    """It cannot be divided."""
    store = Store()
    store.kept.append(Y)
    model = seeded(lambda: Net(lambda made, store: made.square().mean()))
    with pytest.raises(ValueError, match=r"1 is a Store that holds a tensor of shape \(8, 6\)"):
        pipelined(model, (X, store), device_map=WHERE)


@pytest.mark.parametrize(
    "makes",
    [
        lambda made, scale: (made * scale[: made.shape[1]].mean()).square().mean(),
        lambda made, scale: (made[:, None] * scale[:, None]).square().mean(),
        lambda made, scale: made.square().mean() * scale.sum(),
    ],
)
def test_an_input_of_the_batchs_size_by_accident(makes: Callable[..., Any]) -> None:
    """The error names what must not be split."""
    model, batch = seeded(lambda: Net(makes)), (X, noise(8, seed=3))
    with pytest.raises(BatchCoupled, match=r"split={'1': None} gives the same"):
        stepped(model, batch, microbatches=8)


def weighed(made: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(made, y, weight=WEIGHTS)


def gated(made: Tensor, y: Tensor, gate: Tensor) -> Tensor:
    return F.mse_loss(made + gate * standardized(made), y)


def batch_in_head(made: Tensor, y: Tensor) -> Tensor:
    return F.mse_loss(made * over_rows(y), y)


@pytest.mark.parametrize(
    ("makes", "y"), [(weighed, CLASSES), (gated, Y), (batch_in_head, Y)], ids=["classes", "gate", "head"]
)
def test_weights_that_hide_what_couples(makes: Callable[..., Any], y: Tensor) -> None:
    """A head or gate of zeros makes values equal, and gradients wrong."""
    with pytest.raises(BatchCoupled):
        stepped(seeded(lambda: Net(makes, zero=makes is not gated)), (X, y))


def test_a_head_of_zeros_with_ignored_labels() -> None:
    """The rule is found all the same; weights are what they were, to the bit, and were not written."""
    model = seeded(lambda: Net(lambda made, y: F.cross_entropy(made, y), zero=True))
    before = [(weight._version, weight.data_ptr()) for weight in model.parameters()]
    with pipelined(model, (X, IGNORED), microbatches=4, device_map=WHERE):
        placed = [(weight._version, weight.data_ptr()) for weight in model.parameters()]
        with torch.no_grad():
            model(X, IGNORED)
        assert placed == [(weight._version, weight.data_ptr()) for weight in model.parameters()]
        assert not any(bool(weight.any()) for weight in model.b.parameters())
    assert len(before) == len(placed)
    stepped(seeded(lambda: Net(lambda made, y: F.cross_entropy(made, y), zero=True)), (X, IGNORED))


class Pairs(nn.Module):
    """Each image with each text, in half precision: SigLIP."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)
        self.scale, self.bias = nn.Parameter(torch.tensor(2.3)), nn.Parameter(torch.tensor(-10.0))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        alike = F.normalize(self.a(x), dim=-1) @ F.normalize(self.b(y), dim=-1).T
        scores = alike * self.scale.exp() + self.bias
        return -F.logsigmoid(scores * (2 * torch.eye(len(x)).to(scores) - 1)).sum() / len(x)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_losses_that_are_equal_in_few_bits(dtype: torch.dtype) -> None:
    """Looks compute with more."""
    model = seeded(Pairs).to(dtype)
    with (
        pipelined(model, (X.to(dtype), Y.to(dtype)), microbatches=4, device_map=WHERE),
        pytest.raises(BatchCoupled),
    ):
        model(X.to(dtype), Y.to(dtype))


def packed(made: Tensor, borders: Tensor) -> Tensor:
    """Rows are the tokens of sequences, whose borders are told."""
    number = torch.searchsorted(borders, torch.arange(len(made)), right=True)
    near = (made @ made.T).masked_fill(number[:, None] != number, -1e9)
    return (near.softmax(1) @ made).square().mean()


def test_packed_sequences() -> None:
    """They are refused, not told and then trained."""
    with pytest.raises(BatchCoupled):
        stepped(seeded(lambda: Net(packed)), (X, torch.tensor([0, 3, 7])))


def test_pairs_of_neighbours_in_odd_parts() -> None:
    """Parts of three rows cut pairs; those of two do not."""

    def pairs(made: Tensor) -> Tensor:
        return (made[::2][: len(made) // 2] - made[1::2]).square().mean()

    with pytest.raises(BatchCoupled):
        stepped(seeded(lambda: Net(pairs)), (X,), microbatches=3)
    stepped(seeded(lambda: Net(pairs)), (X,))


class Remembers(nn.Module):
    """A layer that compares rows with those of the steps before."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("bank", noise(8, 6, seed=5))
        self.inside = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        z = self.inside(x)
        scores = z @ self.bank.T  # type: ignore[has-type]
        with torch.no_grad():
            self.bank.copy_(torch.cat([z.detach(), self.bank])[:8])  # type: ignore[has-type]
        return scores


def test_a_memory_bank() -> None:
    """A microbatch would compare with what the one before left."""
    model = nn.ModuleDict({"a": Remembers(), "b": nn.Linear(8, 4)}).double()

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = model["a"], model["b"]

        def forward(self, x: Tensor) -> Tensor:
            return F.cross_entropy(self.b(self.a(x)), torch.zeros(len(x), dtype=torch.long))

    with pytest.raises(BatchCoupled):
        stepped(seeded(Both), (X,))


class Draws(nn.Module):
    """Its own code draws random numbers."""

    def __init__(self, how: Callable[[Tensor], Tensor], *, couples: bool = False) -> None:
        super().__init__()
        self.a, self.b, self.how, self.couples = nn.Linear(6, 6), nn.Linear(6, 6), how, couples

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        made = self.b(self.how(self.a(x)))
        return F.mse_loss(standardized(made) if self.couples else made, y)


@pytest.mark.parametrize(
    "how",
    [
        lambda h: F.dropout(h, 0.5),
        lambda h: h + torch.randn_like(h),
        lambda h: h * torch.rand(len(h), 1),
        lambda h: h * torch.empty_like(h).bernoulli_(0.7),
        lambda h: F.gumbel_softmax(h, tau=1.0),
    ],
    ids=["dropout", "randn", "rand", "bernoulli", "gumbel"],
)
def test_draws_by_row(how: Callable[[Tensor], Tensor], caplog: pytest.LogCaptureFixture) -> None:
    """They are the same in whole and parts, so that the model is judged: no false alarm, and none missed."""
    model = seeded(lambda: Draws(how))
    with pipelined(model, (X, Y), microbatches=4, device_map=WHERE):
        model(X, Y).backward()
    assert not caplog.records
    with (
        pipelined(coupled := seeded(lambda: Draws(how, couples=True)), (X, Y), device_map=WHERE),
        pytest.raises(BatchCoupled),
    ):
        coupled(X, Y)


def test_draws_that_are_no_matter_of_rows(caplog: pytest.LogCaptureFixture) -> None:
    """That is said once, and no error."""
    model = seeded(lambda: Draws(lambda h: h + h[torch.randperm(len(h))]))
    with pipelined(model, (X, Y), microbatches=4, device_map=WHERE):
        for _ in range(3):
            model(X, Y).backward()
    assert caplog.text.count("were not judged beside the whole") == 1


def test_looks_are_few(caplog: pytest.LogCaptureFixture) -> None:
    """At calls 1, 2, 4, 8, ..., also where labels are ignored from the third on."""
    model = seeded(lambda: Net(lambda made, y: F.cross_entropy(made, y)))
    plain = copy.deepcopy(model)
    with pipelined(model, (X, CLASSES), microbatches=4, device_map=WHERE):
        for step in range(9):
            for network in (model, plain):
                network.zero_grad()
                network(X, CLASSES if step < 2 else IGNORED).backward()
    assert_same_gradients(model, plain)
    judge = _judge_of(model)
    assert judge.judgements == 5 and not caplog.records


def _judge_of(model: nn.Module) -> Any:
    from baechi.run.binding import binding_of

    binding = binding_of(model)
    assert binding is not None
    return binding.runtime.microbatches.judge


def test_an_interrupt_in_a_look_leaves_weights_as_they_were() -> None:
    """Also those that are something else meanwhile."""

    def interrupted(made: Tensor) -> Tensor:
        if bool(made.any()):
            raise KeyboardInterrupt
        return made.mean()

    model = seeded(lambda: Net(interrupted, zero=True))
    with (
        pipelined(model, (X,), microbatches=4, device_map=WHERE),
        pytest.raises(KeyboardInterrupt),
    ):
        model(X)
    assert not any(bool(weight.any()) for weight in model.b.parameters())


@pytest.mark.parametrize(("how", "fits"), [("rows", True), ("sum", False)])
def test_what_is_told_is_judged_too(how: Any, fits: bool) -> None:
    """Weights of losses that do not give the loss of the batch are refused."""
    model = seeded(lambda: Net(lambda made, y: F.cross_entropy(made, y, reduction="none").mean()))
    if fits:
        stepped(model, (X, IGNORED), loss_weights=how)
    else:
        with pytest.raises(BatchCoupled, match="loss_weights"):
            stepped(model, (X, IGNORED), loss_weights=how)


def test_labels_are_told() -> None:
    """Which of them count is found out."""
    model = seeded(lambda: Net(lambda made, y: F.cross_entropy(made, y)))
    stepped(model, (X, IGNORED), loss_weights="labels")


def test_hooks_count_no_looks() -> None:
    """What the user's hooks collect is of steps."""
    seen: list[int] = []
    model = seeded(lambda: Net(lambda made: made.square().mean()))
    model.a.register_forward_hook(lambda module, given, made: seen.append(len(made)))
    with pipelined(model, (X,), microbatches=4, device_map=WHERE):
        seen.clear()
        model(X).backward()
    assert seen == [2, 2, 2, 2]


@pytest.mark.parametrize("couples", [True, False])
def test_a_batch_that_does_not_fit(couples: bool) -> None:
    """The largest union of unequal parts that fits is judged in its place."""

    def makes(made: Tensor) -> Tensor:
        if len(made) > 5:
            raise torch.OutOfMemoryError
        return (standardized(made) * X[0] if couples else made).pow(3).mean()

    model = seeded(lambda: Net(makes))
    with pipelined(model, (X,), microbatches=4, device_map=WHERE):
        if couples:
            with pytest.raises(BatchCoupled, match="from 3 microbatches"):
                model(X)
        else:
            model(X).backward()
            assert _judge_of(model).judgements == 1
