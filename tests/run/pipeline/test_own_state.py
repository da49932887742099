"""What a microbatch writes to modules is its own; what cannot be kept apart is refused."""

import copy
from typing import Any

import pytest
import torch
from run.pipeline.by_loop import WithLoss, assert_as_loop, assert_same_gradients
from run.pipeline.nets import noise, pipelined, seeded
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from baechi.errors import BaechiError
from baechi.run.pipeline.lanes.shared_tensors import values_of_user
from baechi.run.pipeline.lanes.user_state import state_of_user

X = noise(6, 4)
WHERE = {"first": 0, "middle": 1, "last": 0}


class Keeps(nn.Module):
    """A layer leaves a tensor for a later one, in an attribute, a list, a dict or an object of the model."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.first, self.middle, self.last = (nn.Linear(4, 4) for _ in range(3))
        self.how, self.kept, self.list = how, None, []
        self.dict: dict[str, Tensor] = {}
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        first = self.first(x)
        if self.how == "attribute":
            self.kept = first
        elif self.how == "list":
            self.list.append(first)
        else:
            self.dict["kept"] = first
        middle = self.middle(first)
        kept = {
            "attribute": lambda: self.kept,
            "list": self.list.pop,
            "dict": lambda: self.dict["kept"],
            "popped": lambda: self.dict.pop("kept"),
        }
        result: Tensor = self.last(middle * kept[self.how]())
        return result.square().mean()


@pytest.mark.parametrize("how", ["attribute", "list", "dict", "popped"])
def test_it_is_kept_apart(how: str) -> None:
    """Losses and gradients are those of the whole batch; the model is as after one call."""
    model = seeded(lambda: Keeps(how))
    plain = copy.deepcopy(model)
    cluster = pipelined(model, X, device_map=WHERE, order="gpipe")  # all stop between writing and reading
    for _ in range(3):  # the first step learns, later ones use what was learned
        plain.zero_grad()
        expected = plain(X)
        expected.backward()
        with cluster:
            model.zero_grad()
            loss = model(X)
            loss.backward()
        assert torch.allclose(loss, expected)
        assert_same_gradients(model, plain)
    assert (model.calls, len(model.list)) == (plain.calls, len(plain.list))


class KeepsLater(Keeps):
    """From the second step on, it uses a list."""

    def forward(self, x: Tensor) -> Tensor:
        self.how = "attribute" if self.calls == 0 else "list"
        result: Tensor = super().forward(x)
        return result


class SetsAndDeletes(Keeps):
    """From the second step on, each call sets an attribute of a layer, and deletes it in the end."""

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        first = self.first(x)
        if self.calls > 1:
            self.last.later = first
        middle = self.middle(first)
        result: Tensor = self.last(middle * first)
        if self.calls > 1:
            result = result * self.last.later
            del self.last.later
        return result.square().mean()


class MakesAList(Keeps):
    """The first step makes a list, which later ones fill and empty."""

    def forward(self, x: Tensor) -> Tensor:
        self.made = getattr(self, "made", [])
        first = self.first(x)
        self.made.append(first)
        result: Tensor = self.last(self.middle(first) * self.made.pop())
        return result.square().mean()


@pytest.mark.parametrize("kind", [KeepsLater, SetsAndDeletes, MakesAList])
def test_what_a_later_step_writes_first(kind: Any) -> None:
    """It is kept apart, though the first step did not write it."""
    model = seeded(lambda: kind("attribute"))
    plain = copy.deepcopy(model)
    cluster = pipelined(model, X, device_map=WHERE, order="gpipe")
    for _ in range(3):
        with cluster:
            loss = model(X)
            loss.backward()
        assert torch.allclose(loss, plain(X))


class GivesRows(Keeps):
    """It returns no loss, and keeps a tensor."""

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = super().forward(x)
        return result.expand(len(x))


def test_a_backward_that_comes_later_leaves_attributes() -> None:
    """Without a loss, backwards run in `backward()`: attributes stay as the last forward left them."""
    model = seeded(lambda: GivesRows("attribute"))
    with pipelined(model, X, device_map=WHERE, order="gpipe", coupled="accept"):
        result = model(X)
        result.sum().backward()
    assert model.calls == 1 and model.kept is not None


def test_what_every_module_has_is_not_looked_after() -> None:
    """Containers are compared whenever another microbatch goes on: the user's, not torch's of each module."""
    model = seeded(lambda: Keeps("list"))
    named = dict(model.named_modules())
    values = {name: values_of_user(module) for name, module in named.items()}
    assert {id(table) for table in state_of_user(named, values).all} == {id(model.list), id(model.dict)}


class Normed(nn.Module):
    """Running statistics in two stages."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.norm(self.last(self.middle(self.first(x))))
        return result


def test_running_statistics_follow_the_microbatches() -> None:
    """As the loop's, bit for bit."""
    model = WithLoss(seeded(Normed), lambda result: result.square().sum() / 3)
    assert_as_loop(model.train(), {"x": noise(9, 4)}, 3, devices=2, placer="round-robin")


class Writes(nn.Module):
    """The model's own code writes a buffer, in place or by another tensor, and reads it later."""

    def __init__(self, *, in_place: bool) -> None:
        super().__init__()
        self.in_place = in_place
        self.first, self.middle, self.last = (nn.Linear(4, 4) for _ in range(3))
        self.register_buffer("memory", torch.zeros(2, 4))

    def forward(self, x: Tensor) -> Tensor:
        first = self.first(x)
        if self.in_place:
            self.memory.copy_(first[:2].detach())
        else:
            self.memory = self.memory * 0.5 + first[:2].detach()
        result: Tensor = self.last(self.middle(first) + self.memory.sum())
        return result.square().mean()


class WritesLater(Writes):
    """From the second step on, the code writes a buffer, a weight or a tensor in a list."""

    def __init__(self, what: str) -> None:
        super().__init__(in_place=True)
        self.what, self.calls, self.tensors = what, 0, [torch.zeros(2, 4)]

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        first = self.first(x)
        if self.calls > 1:
            written = {"memory": self.memory, "weight": self.last.weight, "tensors": self.tensors[0]}
            with torch.no_grad():
                written[self.what].mul_(0.5)
        result: Tensor = self.last(self.middle(first) + self.tensors[0].sum() + self.memory.sum())
        return result.square().mean()


@pytest.mark.parametrize("what", ["memory", "weight", "tensors"])
def test_tensors_that_a_later_step_writes_are_refused(what: str) -> None:
    """It was silent: microbatches read what the others wrote."""
    model = seeded(lambda: WritesLater(what))
    with pipelined(model, X, device_map=WHERE, order="gpipe", coupled="accept"):
        model(X)
        with pytest.raises(BaechiError, match=f"{what}.* is written in forward"):
            model(X)


@pytest.mark.parametrize("in_place", [True, False])
def test_a_buffer_that_the_code_writes_is_refused(in_place: bool) -> None:
    """With its name and the cure."""
    model = seeded(lambda: Writes(in_place=in_place))
    cluster = pipelined(model, X, device_map=WHERE, coupled="accept")
    with cluster, pytest.raises(BaechiError, match="memory is written in forward"):
        model(X)


def test_a_hook_before_a_layer_that_writes_its_buffers_is_refused_with_the_cure() -> None:
    """It runs before the layer's turn, in the stretch of code before; within the layer it is right."""
    model = seeded(lambda: nn.Sequential(*[nn.Linear(4, 4) for _ in range(3)]))
    nn.utils.spectral_norm(model[1])
    options: Any = {"loss_weights": "rows", "coupled": "accept"}
    cluster = pipelined(model, X, device_map={"0": 0, "1": 1, "2": 0}, **options)
    with cluster, pytest.raises(BaechiError, match=r"1\.weight_u .*parametrizations\.spectral_norm"):
        model(X)


class Counting(nn.Linear):
    """A layer that writes an attribute, and goes around `nn.Module`."""

    table = "__dict__"

    def forward(self, x: Tensor) -> Tensor:
        getattr(self, self.table)["seen"] = x.detach()
        return super().forward(x)


@pytest.mark.parametrize("table", ["__dict__", "_buffers"])
def test_what_was_written_unseen_is_told(table: str) -> None:
    """The step in which that happens first raises; the one after it has learned it."""
    model: Any = seeded(lambda: Keeps("attribute"))
    cluster = pipelined(model, X, device_map=WHERE)
    with cluster:
        for _ in range(2):
            model(X).backward()
        model.middle.__class__ = type("Counting", (Counting,), {"table": table})
        with pytest.raises(BaechiError, match=r"Counting\.seen"):
            model(X)
        model(X).backward()


class Registers(nn.Linear):
    """A layer that makes a buffer anew where more rows come."""

    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self, "ramp") or len(self.ramp) < len(x):
            self.register_buffer(
                "ramp", torch.arange(len(x), dtype=x.dtype, device=x.device), persistent=False
            )
        return super().forward(x) + self.ramp[: len(x), None]


def test_a_layer_makes_a_buffer_in_a_later_step() -> None:
    """As rotary embeddings do for longer sequences: it is the layer's own."""
    model: Any = seeded(lambda: Keeps("attribute"))
    model.middle = seeded(lambda: Registers(4, 4))
    cluster = pipelined(model, X, device_map=WHERE, coupled="accept")
    for rows in (6, 9):
        with cluster:
            model(noise(rows, 4)).backward()
    assert len(model.middle.ramp) == 3


class ReadsStatistics(nn.Module):
    """The model's code reads what its first layer wrote, or its last one will, in another stretch of code."""

    def __init__(self, norm: str) -> None:
        super().__init__()
        self.first, self.middle, self.last = (nn.Linear(4, 4) for _ in range(3))
        self.norm = nn.BatchNorm1d(4)
        setattr(self, norm, self.norm)

    def forward(self, x: Tensor) -> Tensor:
        first = self.first(x)
        if self.norm is self.last:
            first = first + self.norm.running_mean
        result: Tensor = self.last(self.middle(first))
        if self.norm is self.first:
            result = result * self.norm.running_mean
        return result.square().mean()


@pytest.mark.parametrize("norm", ["first", "last"])
def test_statistics_that_the_code_reads_are_refused(norm: str) -> None:
    """It was silent: microbatches read those of others."""
    model = seeded(lambda: ReadsStatistics(norm))
    cluster = pipelined(model, X, device_map=WHERE, order="gpipe")
    with cluster, pytest.raises(BaechiError, match="is written by its layer"):
        model(X)


class Statistics(nn.Module):
    """Running statistics in a checkpoint, which backward runs again."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.last = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = checkpoint(self.middle, self.first(x), use_reentrant=False)
        return self.last(h).square().mean()


def test_statistics_in_a_checkpoint_are_refused() -> None:
    """A loop over the parts runs it again before the next part; a pipeline after it. It was silent."""
    model = seeded(Statistics)
    with pipelined(model, X, device_map=WHERE), pytest.raises(BaechiError, match="is written when backward"):
        model(X).backward()


class Counts(nn.Module):
    """A layer that counts its calls in a tensor that is no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.seen = nn.Linear(4, 4), torch.zeros(2)

    def forward(self, x: Tensor) -> Tensor:
        self.seen.add_(1)
        result: Tensor = self.inside(x)
        return result


def test_looks_leave_no_trace_in_tensors_of_attributes() -> None:
    """The first call looks at outputs of two and of three rows; only microbatches count."""
    model = seeded(lambda: nn.Sequential(nn.Linear(4, 4), Counts(), nn.Linear(4, 4)))
    cluster = pipelined(
        model, X, device_map={"0": 0, "1": 1, "2": 0}, no_split_module_classes=["Counts"], loss_weights="rows"
    )
    with cluster:
        model(X).sum().backward()
    assert model.get_submodule("1").seen.tolist() == [3, 3]
