"""The fast path of microbatches: which calls take it, and when it is left."""

import copy
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from threading import get_ident
from typing import Any

import pytest
import torch
from run.pipeline.by_loop import assert_same_gradients
from run.pipeline.nets import noise, pipelined, seeded
from torch import Tensor, nn

from baechi.errors import BaechiError
from baechi.run import calls, plain_step
from baechi.run.steady import paths
from baechi.run.step.glue import GlueMode

X = noise(6, 4)
MICROBATCHES = 3


class Frame:
    """An object that holds a tensor."""

    def __init__(self) -> None:
        self.shift: Tensor | None = None
        self.inner: Tensor | None = None


TURNS: Counter[str] = Counter()
"""By layer, how many microbatches of a step have called it."""


class Shifts(nn.Linear):
    """In some microbatches it adds what an object holds; it leaves its result there."""

    def __init__(self, name: str) -> None:
        super().__init__(4, 4)
        self.name, self.microbatches = name, ()

    def forward(self, x: Tensor, frame: Frame) -> Tensor:
        result = super().forward(x).tanh()
        if TURNS[self.name] in self.microbatches and frame.shift is not None:
            result = result + frame.shift.exp()
        TURNS[self.name] += 1
        frame.shift, frame.inner = result, result * 2
        return result


class Both(nn.Linear):
    """It is given two tensors."""

    def __init__(self) -> None:
        super().__init__(4, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return super().forward(x).tanh() * y


class Chain(nn.Module):
    """Four layers and ops on the first device, five on the second, and two more on the first."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d, self.f, self.z = (nn.Linear(4, 4) for _ in range(6))
        self.norm, self.act, self.e, self.g = nn.BatchNorm1d(4), nn.GELU(), Shifts("e"), Shifts("g")
        self.h = Both()
        self.beside = self.unseen = self.later = False

    def forward(self, x: Tensor) -> Tensor:
        frame = Frame()
        first = self.b(self.a(x).sigmoid())
        second = self.e(first * 2, frame)
        if not self.later:
            second = self.z(frame.inner if self.unseen else second)
        third = self.d(self.act(self.norm(self.c(second))).relu())
        if self.beside:
            third = third + first
        result: Tensor = self.h(self.f(self.g(third, frame) + second), second)
        if self.later:
            result = self.z(result)
        return result.square().mean()


WHERE = dict.fromkeys("abezfh", 0) | dict.fromkeys(["c", "norm", "act", "d", "g"], 1)
FIRST = {"a", "c", "f", "h"}
"""The layers with which runs begin, and one that is given what another part made on its device."""


def hook(model: Any) -> None:
    model.d.register_forward_hook(lambda module, args, result: result * 2)


def hook_with_what_is_elsewhere(model: Any) -> None:
    """The layer is given what another part made."""
    kept: dict[int, Tensor] = {}  # by thread: each microbatch has its own
    model.a.register_forward_hook(lambda module, args, result: kept.update({get_ident(): result}))
    model.d.register_forward_pre_hook(lambda module, args: (kept.pop(get_ident()),))


def hook_with_a_weight(model: Any) -> None:
    model.b.register_forward_pre_hook(lambda module, args: (args[0] + model.a.weight[0],))


def flag(model: Any) -> None:
    """The statistics are read; backward waits for the caller's."""
    model.eval()


def weight(model: Any) -> None:
    model.d.weight = nn.Parameter(model.d.weight.detach() * 2)


def frozen(model: Any) -> None:
    for one in (model.a.weight, model.a.bias):
        one.requires_grad_(False)


def layer(model: Any) -> None:
    """What was not there when the model was placed is code of the model."""
    model.act = nn.Tanh()


def other_way(model: Any) -> None:
    """An op reads on the second device what the first one made."""
    model.beside = True


def unseen(model: Any) -> None:
    """A layer is given what another one made inside."""
    model.unseen = True


def later(model: Any) -> None:
    """The code calls a layer of the first stage in the last one."""
    model.later = True


def hidden_in_all(model: Any) -> None:
    """A layer takes a tensor of another part from an object that it is given."""
    model.g.microbatches = (0, 1, 2)


def hidden_in_one(model: Any) -> None:
    """It does so in one microbatch only."""
    model.g.microbatches = (1,)


def nothing(model: Any) -> None:
    del model


CHANGES: list[tuple[Callable[[Any], None], set[str]]] = [
    (hook, set()),
    (hook_with_what_is_elsewhere, {"d"}),
    (hook_with_a_weight, set()),
    (flag, set()),
    (weight, set()),
    (frozen, set()),
    (layer, {"act"}),
    (other_way, set()),
    (unseen, {"z"}),
    (later, {"z"}),
    (hidden_in_all, set()),
    (hidden_in_one, set()),
    (nothing, set()),
]
"""A change, and the layers that leave the fast path then."""


def loop(model: nn.Module, x: Tensor) -> Tensor:
    """A step over the same parts."""
    total = torch.zeros((), dtype=x.dtype)
    for part in x.chunk(MICROBATCHES):
        loss = model(part) / MICROBATCHES
        loss.backward()
        total += loss.detach()
    return total


def placed() -> tuple[Any, Any, Any]:
    model: Any = seeded(Chain)
    plain, x = copy.deepcopy(model), X
    cluster = pipelined(model, x, device_map=WHERE, order="gpipe", loss_weights="rows", coupled="accept")
    return model, plain, cluster


@pytest.mark.parametrize("emulated", [False, True], ids=["outside", "emulated"])
@pytest.mark.parametrize(("change", "left"), CHANGES, ids=[change.__name__ for change, _ in CHANGES])
def test_it_is_left(
    change: Callable[[Any], None], left: set[str], emulated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached: Counter[str] = Counter()
    full: Counter[str] = Counter()
    run_layer, run_at_its_turn = plain_step.run_layer, plain_step._run_at_its_turn

    def noted(*given: Any) -> Any:
        if given[2].step.boundary is not None:  # else the judge looks at the whole batch
            reached[given[3].name] += 1
        return run_layer(*given)

    def left_for(*given: Any) -> Any:
        if given[2].step.boundary is not None:
            full[given[3].name] += 1
        return run_at_its_turn(*given)

    def check(expected: set[str]) -> None:
        reached.clear()
        full.clear()
        for one in (model, plain):
            one.zero_grad()
        TURNS.clear()
        total = loop(plain, X)
        TURNS.clear()
        with cluster if emulated else nullcontext():
            loss = model(X)
            loss.backward()
        assert torch.allclose(loss.detach(), total, rtol=1e-12, atol=0)
        assert_same_gradients(model, plain)
        for one, other in zip(model.buffers(), plain.buffers(), strict=True):
            assert torch.allclose(one, other, rtol=1e-12)
        assert dict(full) == dict.fromkeys(expected & set(reached), MICROBATCHES)

    monkeypatch.setattr(calls, "run_layer", noted)
    monkeypatch.setattr(plain_step, "_run_at_its_turn", left_for)
    model, plain, cluster = placed()
    for _ in range(4):  # the judge looks at the first, second and fourth
        check(FIRST)
    assert set(reached) == set(WHERE)
    change(plain)
    change(model)
    for _ in range(3):
        check(FIRST | left)


class Counts(nn.Linear):
    """It counts its calls in a buffer, and returns it."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.register_buffer("count", torch.zeros(4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.count += 1
        return super().forward(x), self.count


class ReadsLater(nn.Module):
    """The second layer of the last stage is given a buffer that one of the first stage writes."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.c, self.f, self.h = Counts(), nn.Linear(4, 4), nn.Linear(4, 4), Both()

    def forward(self, x: Tensor) -> Tensor:
        result, count = self.a(x)
        result = self.h(self.f(self.c(result)), count)
        return result.square().mean()


def test_a_buffer_that_is_written_elsewhere_is_seen() -> None:
    """It is refused, as on the full path."""
    model = seeded(ReadsLater)
    where = {"a": 0, "c": 1, "f": 0, "h": 0}
    pipelined(model, X, device_map=where, order="gpipe", loss_weights="rows", coupled="accept")
    with pytest.raises(BaechiError, match="written by its layer in forward, and read in another stretch"):
        model(X)


def test_ops_take_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """An op that reads what its own part made; not one that reads what lies elsewhere, or that writes."""
    full: list[str] = []
    run = GlueMode._run

    def noted(mode: Any, func: Any, facts: Any, *given: Any) -> Any:
        if mode.step.boundary is not None:
            full.append(facts.name)
        return run(mode, func, facts, *given)

    monkeypatch.setattr(GlueMode, "_run", noted)
    model, _, _ = placed()
    for _ in range(2):
        full.clear()
        model(X).backward()
    assert Counter(full) == {"add": MICROBATCHES}  # which reads what both devices made
    with paths.full_path_only():
        full.clear()
        model(X).backward()
    ops = {"sigmoid": 1, "mul": 1, "relu": 1, "add": 1, "square": 1, "mean": 1}
    assert Counter(full) == {name: count * MICROBATCHES for name, count in ops.items()}
