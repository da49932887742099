"""Cross entropy over a split vocabulary: the logits are never joined, whatever way the code takes to it."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from run.split.split_layers import TOLERANCE, Tied, assert_same, split_on, twins, words
from torch import nn
from torch.nn import functional

import baechi
from baechi.errors import ShardedTensorError
from baechi.run.sharded.output import ShardedOutput

SPEC = baechi.BatchSpec({"out": 14}, device_matrix=[0, 1, 2])
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def causal(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """As transformers' `ForCausalLMLoss` has it."""
    logits = logits.float() if logits.dtype != torch.float64 else logits
    labels = functional.pad(labels, (0, 1), value=-100)[..., 1:].contiguous()
    logits = logits.view(-1, logits.shape[-1])
    return functional.cross_entropy(logits, labels.view(-1).to(logits.device), ignore_index=-100)


LOSSES: dict[str, Loss] = {
    "flat": lambda x, y: functional.cross_entropy(x.view(-1, x.size(-1)), y.view(-1)),
    "causal": causal,
    "shifted": lambda x, y: functional.cross_entropy(
        x[..., :-1, :].contiguous().view(-1, 41), y[..., 1:].reshape(-1)
    ),
    "transposed": lambda x, y: functional.cross_entropy(x.transpose(1, 2), y),
    "a module": lambda x, y: nn.CrossEntropyLoss()(x.flatten(0, 1), y.flatten()),
    "sum": lambda x, y: functional.cross_entropy(x.flatten(0, 1), y.flatten(), reduction="sum"),
    "each row": lambda x, y: functional.cross_entropy(
        x.flatten(0, 1), y.flatten(), reduction="none", ignore_index=7
    ).pow(2).sum(),
    "ignored": lambda x, y: functional.cross_entropy(x.flatten(0, 1), y.flatten(), ignore_index=int(y[0, 0])),
    "smoothed": lambda x, y: functional.cross_entropy(
        x.flatten(0, 1), y.flatten(), label_smoothing=0.2, ignore_index=int(y[0, 1])
    ),
    "capped": lambda x, y: functional.cross_entropy((torch.tanh(x / 30) * 30).flatten(0, 1), y.flatten()),
    "one row": lambda x, y: functional.cross_entropy(x[0, 1], y[0, 1]),
    "twice": lambda x, y: functional.cross_entropy(x[:, 0], y[:, 0])
    + functional.cross_entropy(x.flatten(0, 1), y.flatten()),
}  # fmt: skip
JOINED: dict[str, Loss] = {
    "class weights": lambda x, y: functional.cross_entropy(
        x.flatten(0, 1), y.flatten(), weight=torch.linspace(0, 1, 41, dtype=x.dtype)
    ),
    "probabilities": lambda x, y: functional.cross_entropy(
        x.flatten(0, 1), functional.one_hot(y.flatten(), 41).to(x.dtype)
    ),
    "softmax": lambda x, y: functional.nll_loss(x.log_softmax(-1).flatten(0, 1), y.flatten()),
    "the largest": lambda x, y: (
        functional.cross_entropy(x.flatten(0, 1), y.flatten()) + x.topk(3).values.sum()
    ),
    "chosen": lambda x, y: (
        x.gather(-1, x.argmax(-1, keepdim=True)).sum()
        + functional.cross_entropy(x.flatten(0, 1), y.flatten())
    ),
    "the words": lambda x, y: functional.cross_entropy(x.flatten(0, 1), y.flatten()) + x[..., 3].sum(),
    "written": lambda x, y: functional.cross_entropy(x.div_(2).flatten(0, 1), y.flatten()),
    "a view written": lambda x, y: functional.cross_entropy(_written(x).flatten(0, 1), y.flatten()),
}


def _written(x: torch.Tensor) -> torch.Tensor:
    before = x.view(-1, 41)
    before[0, 3] = 5.0
    return x


class Scored(Tied):
    def __init__(self, loss: Loss) -> None:
        super().__init__()
        self.loss, self.seen = loss, []  # type: ignore[var-annotated]

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        logits = self.head(torch.relu(self.middle(self.embed(ids))))
        loss = self.loss(logits, labels)
        self.seen = [logits] if isinstance(logits, ShardedOutput) else []
        return loss


class Tempered(Scored):
    """A weight of the model's own stands between the head and the loss."""

    def __init__(self) -> None:
        super().__init__(lambda x, y: functional.cross_entropy((x * self.scale).flatten(0, 1), y.flatten()))
        self.scale = nn.Parameter(torch.ones(1))


def same_step(model: Any, plain: Any, cluster: baechi.Cluster, inputs: Any) -> None:
    with cluster:
        loss = model(*inputs)
        loss.backward()
    expected = plain(*inputs)
    expected.backward()
    torch.testing.assert_close(loss.detach().cpu(), expected.detach(), rtol=0, atol=TOLERANCE)
    assert_same(model, plain)


@pytest.mark.parametrize("name", [*LOSSES, *JOINED])
def test_values_and_gradients(name: str) -> None:
    """Each is that of whole logits, and only what needs them joins them."""
    model, plain = twins(lambda: Scored({**LOSSES, **JOINED}[name]))
    inputs = (words(2, 5), words(2, 5))
    cluster = split_on(3, model, inputs, {"head": SPEC}, reorder=name != "flat")
    same_step(model, plain, cluster, inputs)
    if name in LOSSES:
        assert model.seen and model.seen[0].whole is None
    else:
        assert not model.seen or model.seen[0].whole is not None


def test_a_weight_before_the_loss() -> None:
    """It lies on one device, so the logits are joined."""
    model, plain = twins(Tempered)
    inputs = (words(2, 5), words(2, 5))
    same_step(model, plain, split_on(3, model, inputs, {"head": SPEC}), inputs)


def test_a_sharded_weight_beside_sharded_logits() -> None:
    """They are cut alike, but its shards have no history, so that its gradient would be lost."""
    model, _ = twins(lambda: Scored(LOSSES["flat"]))
    model.head = nn.Linear(6, 41).double()
    inputs = (words(2, 5), words(2, 5))
    cluster = split_on(3, model, inputs, {"head": SPEC})
    bias: Any = model.head.bias
    model.loss = lambda x, y: LOSSES["flat"](x + bias, y)
    with pytest.raises(ShardedTensorError, match="leave its layer out of split="), cluster:
        model(*inputs)


def test_labels_out_of_range_raise() -> None:
    """Below the first word, or beyond the last one, as torch does."""
    model, _ = twins(lambda: Scored(LOSSES["flat"]))
    inputs = (words(2, 5), words(2, 5))
    split_on(3, model, inputs, {"head": SPEC})
    for label in (-3, 41, 60):
        with pytest.raises((IndexError, RuntimeError), match="out of bounds"):
            model(inputs[0], torch.full((2, 5), label))


@pytest.mark.parametrize("autocast", [False, True])
def test_lower_precision(autocast: bool) -> None:
    """The loss has torch's dtype, and is at least as exact; under autocast it is float32."""
    model, plain = twins(lambda: Scored(LOSSES["flat"]))
    inputs = (words(2, 5), words(2, 5))
    kind = torch.float32 if autocast else torch.bfloat16
    exact = copy.deepcopy(plain)(*inputs)
    split_on(3, model, inputs, {"head": SPEC})
    model.to(kind), plain.to(kind)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        loss, expected = model(*inputs), plain(*inputs)
    assert loss.dtype == expected.dtype
    assert abs(loss.item() - exact.item()) <= abs(expected.item() - exact.item()) + 0.02
    loss.backward()
    expected.backward()
    torch.testing.assert_close(model.head.weight.grad.cpu(), plain.head.weight.grad, rtol=0.1, atol=0.05)


class Returned(Tied):
    """It returns loss and logits, as models of transformers do."""

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> Any:
        logits = self.head(torch.relu(self.middle(self.embed(ids))))
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), logits


def test_returned_logits_are_joined_when_used() -> None:
    """They stay sharded until the caller asks for values; then they are one tensor, also for autograd."""
    model, plain = twins(Returned)
    inputs = (words(2, 5), words(2, 5))
    cluster = split_on(3, model, inputs, {"head": SPEC})
    with cluster:
        loss, logits = model(*inputs)
        assert isinstance(logits, ShardedOutput) and logits.whole is None and logits.shape == (2, 5, 41)
        (loss + logits.sin().sum()).backward()
    expected, whole = plain(*inputs)
    (expected + whole.sin().sum()).backward()
    assert_same(model, plain)
    assert torch.allclose(logits.detach(), whole.detach())
    with torch.no_grad():
        assert torch.equal(model(*inputs)[1].argmax(-1), whole.argmax(-1))


def test_memory() -> None:
    """No device holds the logits, and the peaks are those that were predicted."""
    torch.manual_seed(0)
    model = Tied(4000, 8)
    inputs = (words(8, 16, below=4000), words(8, 16, below=4000))
    cluster = baechi.Cluster.virtual(4, memory="1GiB")
    spec = baechi.BatchSpec({"out": 1000}, device_matrix=range(4))
    baechi.distribute(model, inputs, cluster=cluster, split={"head": spec}, effort=0)
    plan = baechi.plan_of(model)
    logits_bytes = 8 * 16 * 4000 * 4
    with cluster:
        for _ in range(2):
            model(*inputs).backward()
        measured = baechi.last_step(model).peak_bytes
    predicted = baechi.simulate(plan).peak_bytes
    for name in cluster.names:
        assert measured[name] < 1.2 * logits_bytes
        assert measured[name] < 1.3 * predicted[name] and predicted[name] < 1.6 * measured[name], name


@pytest.mark.parametrize("smoothing", [0.0, 1e-4])
def test_a_small_loss_of_large_logits(smoothing: float) -> None:
    """The largest logit does not round a small loss away, in 32 bits."""

    class Sure(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, 8, bias=False)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return functional.cross_entropy(self.head(x), y, label_smoothing=smoothing)

    model, y = Sure(), torch.tensor([1, 6])
    with torch.no_grad():
        model.head.weight.copy_(torch.eye(8)[:, [0, 1, 6, 7]] + 1000)
    x = torch.tensor([[0.5, 9, 0, 0], [0, 0, 9, 0.5]])
    expected = model(x, y)
    baechi.distribute(model, (x, y), cluster=baechi.Cluster.virtual(2, memory="1GiB"), split={"head": 2})
    assert float(expected.detach()) < 0.02
    torch.testing.assert_close(model(x, y), expected, rtol=2e-4, atol=0)
