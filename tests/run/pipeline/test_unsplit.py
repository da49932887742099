"""Calls that are not split: as the caller says, or since they cannot be; and small last batches."""

import copy
import logging
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from run.pipeline.by_loop import assert_same_gradients
from run.pipeline.nets import noise, pipelined, seeded
from torch import Tensor, nn
from torch.nn import functional as F

import baechi
from baechi.errors import BaechiError
from baechi.torchlib.shards.weight import ShardedWeight

WHERE = {"": 0, "a": 0, "m": 1, "b": 1}


class Net(nn.Module):
    """Three layers, and a loss if there is a target; it adds what it computes to a list that it is given."""

    def __init__(self, norm: bool = False) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)
        self.m = nn.Sequential(nn.BatchNorm1d(6) if norm else nn.Linear(6, 6), nn.Tanh())

    def forward(self, x: Tensor, y: Tensor | None = None, kept: list[Tensor] | None = None) -> Any:
        hidden = self.m(self.a(x).tanh())
        if kept is not None:
            kept.append(hidden)
        return self.b(hidden) if y is None else F.mse_loss(self.b(hidden), y)


class Normed(Net):
    """Statistics of the batch in its middle."""

    def __init__(self) -> None:
        super().__init__(norm=True)


def batch(rows: int) -> tuple[Tensor, Tensor]:
    return noise(rows, 6, seed=rows), noise(rows, 6, seed=50 + rows)


def twins(
    build: Callable[[], nn.Module] = Net, microbatches: int = 4, rows: int = 8, **options: Any
) -> tuple[Any, Any, baechi.Cluster]:
    """A model in microbatches, the same one plain, and the cluster."""
    model = seeded(build)
    plain = copy.deepcopy(model)
    options = {"device_map": WHERE, "order": "1f1b", **options}
    return model, plain, pipelined(model, batch(rows), microbatches=microbatches, **options)


def trained(
    model: nn.Module, plain: nn.Module, cluster: baechi.Cluster, rows: int, unsplit: bool = False
) -> int | None:
    """A step has the loss and gradients of the plain model; returns how many microbatches it had."""
    made = []
    for network, where in ((model, cluster), (plain, nullcontext())):
        network.zero_grad()
        with where, baechi.unsplit(model) if unsplit else nullcontext():
            loss = network(*batch(rows))
            loss.backward()
        made.append(loss.detach())
    torch.testing.assert_close(*made, rtol=1e-12, atol=0)
    if not any(isinstance(weight, ShardedWeight) for weight in model.parameters()):
        assert_same_gradients(model, plain)
    for mine, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert mine.grad is not None
        torch.testing.assert_close(mine.grad.cpu(), other.grad)
    return baechi.last_step(model).counters.get("microbatches")


# --- `with baechi.unsplit(model)`


@pytest.mark.default_cases(2)
@pytest.mark.parametrize(
    "options",
    [
        {"device_map": WHERE},
        {"device_map": WHERE, "recompute": ["m"]},
        {"device_map": None, "split": {"b": 2, "m.0": 2}, "recompute": ["m"]},
        {"device_map": None, "split": {"b": 2}},
        {"device_map": WHERE, "outputs": "device"},
    ],
    ids=["plain", "recomputed", "shards, recomputed", "shards", "outputs stay"],
)
def test_a_step_runs_unsplit(options: dict[str, Any]) -> None:
    """Training too, between steps in microbatches."""
    made = twins(**options)
    calls = [(8, False), (8, True), (3, True), (8, False)]
    assert [trained(*made, rows, unsplit) for rows, unsplit in calls] == [4, None, None, 4]


def test_a_loss_by_the_caller_s_function() -> None:
    """`loss=` gets the target there, too."""
    model = seeded(Net)
    plain = copy.deepcopy(model)
    x, y = batch(8)
    with pipelined(model, {"x": x, "target": y}, microbatches=4, device_map=WHERE, loss=F.mse_loss):
        with baechi.unsplit(model):
            model(x, target=y).backward()
            assert model(x).shape == (8, 6)
    F.mse_loss(plain(x), y).backward()
    assert_same_gradients(model, plain)


def test_it_is_of_that_model_alone_and_ends() -> None:
    """A module around it may be named; another model, and what comes after, runs as ever; errors end it."""
    model, _, cluster = twins()
    other, _, _ = twins()
    outer = nn.Sequential(model)
    with cluster:
        with baechi.unsplit(outer), baechi.unsplit(model):
            outer(batch(8)[0])
            assert "microbatches" not in baechi.last_step(model).counters
            other(batch(8)[0])
            assert baechi.last_step(other).counters["microbatches"] == 4
        with pytest.raises(KeyError), baechi.unsplit(model):
            raise KeyError
        model(batch(8)[0])
    assert baechi.last_step(model).counters["microbatches"] == 4


def test_at_the_first_call_and_in_copies() -> None:
    """A model that is planned then; a deep copy, and one from a pickle."""
    model = seeded(Net)
    plain = copy.deepcopy(model)
    cluster = baechi.Cluster.virtual(2)
    baechi.distribute(model, cluster=cluster, microbatches=4, device_map=WHERE)
    assert trained(model, plain, cluster, 8, unsplit=True) is None
    assert trained(copy.deepcopy(model), plain, cluster, 8, unsplit=True) is None
    again = pickle.loads(pickle.dumps(model))
    assert trained(again, plain, cluster, 8, unsplit=True) is None
    assert trained(again, plain, cluster, 8) == 4


def test_without_microbatches_it_changes_nothing() -> None:
    """A plain plan runs as ever; what is not distributed is refused."""
    model = seeded(Net)
    plain = copy.deepcopy(model)
    cluster = baechi.Cluster.virtual(2)
    baechi.distribute(model, batch(8), cluster=cluster, device_map=WHERE)
    assert trained(model, plain, cluster, 8, unsplit=True) is None
    with pytest.raises(BaechiError, match="this Net is not distributed"), baechi.unsplit(plain):
        pass


FOLLOWED: dict[str, Callable[[Any], Tensor]] = {
    "func.grad": lambda model: torch.func.grad(lambda x: model(x).square().sum())(batch(8)[0]),
    "vmap": lambda model: torch.func.vmap(model)(noise(4, 8, 6)),
    "computed weights": lambda model: torch.func.functional_call(
        model, {name: weight * 1.5 for name, weight in model.named_parameters()}, batch(8)
    ),
    "jvp": lambda model: torch.func.jvp(model, (batch(8)[0],), (noise(8, 6),))[1],
}


@pytest.mark.default_cases(2)
@pytest.mark.parametrize("how", FOLLOWED)
def test_what_microbatches_cannot_follow_runs_unsplit(how: str) -> None:
    """The error says so, and so it is."""
    model, plain, _ = twins()
    with pytest.raises(BaechiError, match=r"call it within `with baechi.unsplit\(model\):`"):
        FOLLOWED[how](model)
    with baechi.unsplit(model):
        torch.testing.assert_close(FOLLOWED[how](model), FOLLOWED[how](plain))


# --- without gradients


class Store:
    """Keeps what it is given, as a cache does."""

    def __init__(self) -> None:
        self.kept: list[Tensor] = []

    def append(self, rows: Tensor) -> None:
        self.kept.append(rows)


def calls(rows: Sequence[int], given: Callable[[], Any]) -> Callable[[Any], Iterator[Any]]:
    """Calls without gradients, and what they return and write."""

    def run(model: Any) -> Iterator[Any]:
        kept = given()
        for number in rows:
            with torch.no_grad():
                yield model(batch(number)[0], kept=kept)
        yield kept.kept if isinstance(kept, Store) else kept

    return run


@pytest.mark.default_cases(1)
@pytest.mark.parametrize(
    ("rows", "given", "why"),
    [
        ((2, 1, 3), lambda: None, "the batch has 2 rows, and there are 4 microbatches"),
        ((8, 8, 2), list, "forward writes to kept, a list that the call was given"),
        ((8, 8, 2), Store, "kept is a Store, which its code may write"),
    ],
    ids=["few rows", "a list", "an object"],
)
def test_without_gradients(
    rows: Sequence[int], given: Callable[[], Any], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What cannot be split runs whole on the plan's devices, which is said once; the rest in microbatches."""
    model, plain, cluster = twins()
    run = calls(rows, given)
    with caplog.at_level(logging.WARNING, "baechi"):
        for mode in (model.eval, model.train):
            mode()
            with cluster:
                made = list(run(model))
            torch.testing.assert_close(made, list(run(plain.train(model.training))), rtol=1e-12, atol=1e-15)
    (said,) = [record.message for record in caplog.records if "runs whole" in record.message]
    assert said == f"a call without gradients runs whole on the plan's devices, not in microbatches: {why}"
    with cluster, torch.inference_mode():
        model(batch(8)[0])
    assert baechi.last_step(model).counters["microbatches"] == 4


@pytest.mark.full
def test_a_transform_without_gradients() -> None:
    """`vmap` runs whole, too."""
    model, plain, _ = twins()
    with torch.no_grad():
        torch.testing.assert_close(FOLLOWED["vmap"](model), FOLLOWED["vmap"](plain))


def test_with_gradients_what_is_given_is_not_written() -> None:
    """The error names it, and the cure."""
    model, _, _ = twins()
    kept: list[Tensor] = []
    with pytest.raises(BaechiError, match=r"forward writes to kept, a list.*with baechi.unsplit\(model\)"):
        model(*batch(8), kept)
    assert not kept
    with baechi.unsplit(model):
        model(*batch(8), kept).backward()
    assert [rows.shape for rows in kept] == [(8, 6)]


# --- a last batch


@pytest.mark.default_cases(1)
@pytest.mark.parametrize(
    "options",
    [
        {"order": "1f1b"},
        {"order": "auto"},
        {"order": "gpipe"},
        {"order": "interleaved", "device_map": None, "placer": "round-robin"},
        {"weights_apart": True, "order": "auto", "device_map": None, "placer": "even"},
        {"device_map": None, "split": {"b": 2}},
        {"recompute": ["m"]},
    ],
    ids=["1f1b", "auto", "gpipe", "interleaved", "weights apart", "shards", "recomputed"],
)
def test_fewer_rows_than_microbatches(options: dict[str, Any]) -> None:
    """One for each row, with the numbers of the plain model; then a whole batch again."""
    made = twins(**options)
    assert [trained(*made, rows) for rows in (8, 3, 1, 5, 2, 8)] == [4, 3, 1, 4, 2, 4]


def test_an_epoch_that_accumulates() -> None:
    """Gradients of unequal batches add up, without a loss in reach as well."""
    model, plain, cluster = twins(accumulate=True)
    for network, where in ((model, cluster), (plain, nullcontext())):
        with where:
            for rows in (8, 8, 3):
                (network(*batch(rows)) / 3).backward()
            for rows in (2, 1):
                F.mse_loss(network(batch(rows)[0]), batch(rows)[1]).backward()
    assert_same_gradients(model, plain)


@pytest.mark.full
def test_inputs_get_gradients_there() -> None:
    """They are joined from as many microbatches."""
    model, plain, _ = twins()
    for rows in (3, 1):
        given = [batch(rows)[0].requires_grad_() for _ in range(2)]
        for network, x in zip((model, plain), given, strict=True):
            network(x).square().sum().backward()
        torch.testing.assert_close(given[0].grad, given[1].grad)


def test_batch_norm_in_a_last_batch() -> None:
    """A microbatch has two rows at least, as torch asks for; one row alone is torch's error."""
    model, plain, cluster = twins(Normed)
    with cluster:
        model(*batch(8)).backward()
        plain(*batch(8))
        model.load_state_dict(plain.state_dict())
    assert [trained(model, plain, cluster, rows) for rows in (3, 2)] == [1, 1]
    with cluster:
        model(*batch(5)).backward()
        assert baechi.last_step(model).counters["microbatches"] == 2
    for network in (plain, model):
        with pytest.raises(ValueError, match="Expected more than 1 value per channel"):
            network(*batch(1))


@pytest.mark.full
def test_peaks_of_a_last_batch() -> None:
    """It takes no more memory than the batch that was planned for."""
    model, _, cluster = twins(rows=16)
    peaks = []
    with cluster:
        for rows in (16, 16, 3, 3, 2, 1):
            model.zero_grad()
            model(*batch(rows)).backward()
            peaks.append(baechi.last_step(model).peak_bytes)
    assert all(peak[name] <= peaks[1][name] for peak in peaks[2:] for name in cluster.names)


def test_distribute_wants_a_row_for_each() -> None:
    """A batch to plan for has as many; nobody is told to drop rows."""
    with pytest.raises(ValueError, match="the batch has 3 rows, and is split into 4 microbatches") as caught:
        twins(rows=3)
    assert "drop_last" not in str(caught.value)
