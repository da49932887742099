"""An inference misses nothing that decides what a call returns, and leaves nothing behind.

Layer `z` is first in the plan's order, so all that the code calls before it waits.
"""

import copy
import random
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import torch
from order.interleaved import distribute
from run.launch.chains import Net, linear, values
from run.launched import LAUNCHERS, runtime_of
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

import baechi
from baechi.backend import virtual
from baechi.errors import BaechiError

SETTING = {"late": False}
"""What `at_capture` did not see."""


@pytest.fixture(autouse=True)
def _at_capture() -> Iterator[None]:
    SETTING["late"] = False
    yield
    SETTING["late"] = False
    Counts.made = 0
    CACHE.clear()
    SEEN.clear()


def outcome(model: nn.Module) -> list[Tensor | None]:
    model.zero_grad()
    random.seed(0)
    out = model(values())
    sum(one.square().sum() for one in out if one.requires_grad).backward()  # type: ignore[union-attr]
    return [*[one.detach() for one in out], *[weight.grad for weight in model.parameters()]]


def both(
    code: Callable[..., Any],
    layers: Mapping[str, nn.Module],
    reorder: Any,
    *,
    between: Callable[[], None] = lambda: None,
    waits: bool = True,
) -> None:
    """Three steps beside those of the model on one device.

    Args:
        code: the forward of the model, which calls `self.z` last.
        layers: the layers besides `z` and the one on the other device.
        reorder: as for `assign`.
        between: runs after the capture.
        waits: whether some layer of the last step waits.
    """

    def whole(self: Any, x: Tensor) -> tuple[Tensor, ...]:
        return *code(self, x), self.z(x), self.far(x.detach())

    plain = Net(whole, **copy.deepcopy(dict(layers)), z=linear(), far=linear())
    model = copy.deepcopy(plain)
    where = {name: int(name == "far") for name in (*layers, "z", "far")}
    cluster = distribute(model, values(), where, ["z"], reorder=reorder)
    between()
    for _ in range(3):
        expected = outcome(plain)
        with cluster:
            found = outcome(model)
        for one, other in zip(expected, found, strict=True):
            assert one is other is None or torch.equal(one, other)  # type: ignore[arg-type]
    if waits:
        assert runtime_of(model).counts["deferred"] > 0


def side_by_side(self: Any, x: Tensor) -> tuple[Tensor, ...]:
    return self.a(x), self.z(x), self.far(x)


class Pick(nn.Module):
    def forward(self, q: Tensor, k: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        return q + k, mask


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("reorder", LAUNCHERS)
def test_which_arguments_are_one_object(reorder: Any, swapped: bool) -> None:
    """Attention to itself and to another, by layers that look the same and return their mask."""

    def code(self: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        h, k, m = self.a(x), self.b(x), self.c(x)
        calls = [lambda: self.p(h, h, k), lambda: self.q(h, k, m)]
        (u, v), (r, s) = [call() for call in (calls[::-1] if swapped else calls)]
        return u * v, r * s

    both(code, {"a": linear(), "b": linear(), "c": linear(), "p": Pick(), "q": Pick()}, reorder)


class ByName(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.inside = nn.ModuleDict({name: nn.ReLU()})

    def forward(self, x: Tensor) -> Tensor:
        return self.inside["a"](x) * 2 if "a" in self.inside else x


class ByAttribute(nn.Module):
    def __init__(self, **attributes: Any) -> None:
        super().__init__()
        vars(self).update(attributes)

    def forward(self, x: Tensor) -> Tensor:
        skips = vars(self).get("forward_how") == ("skip",) or isinstance(vars(self).get("dims"), tuple)
        return x if skips else x * 2


PAIRS = {
    "names of submodules": (ByName("b"), ByName("a")),
    "attributes like forward": (ByAttribute(forward_how=("skip",)), ByAttribute(forward_how=("double",))),
    "kinds of containers": (ByAttribute(dims=(1, 2)), ByAttribute(dims=[1, 2])),
}


@pytest.mark.parametrize("pair", PAIRS)
def test_layers_that_differ_share_no_outcome(pair: str) -> None:
    """One returns its argument, and the other twice as much."""

    def code(self: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.a(x)
        return self.p(h), self.q(h)

    one, other = PAIRS[pair]
    both(code, {"a": linear(), "p": one, "q": other}, True)


class Counts(nn.Linear):
    """It writes a global, an attribute of its class, an object and a set of its own, and draws."""

    made = 0

    def __init__(self, what: str) -> None:
        super().__init__(8, 8)
        self.what, self.own, self.numbers = what, Own(), set[int]()

    def forward(self, x: Tensor) -> Tensor:
        factor: float = 1
        if self.what == "class":
            Counts.made += 1
            factor = Counts.made % 3
        elif self.what == "object":
            self.own.made += 1
            factor = self.own.made
        elif self.what == "set":
            self.numbers.add(len(self.numbers))
            factor = len(self.numbers)
        elif self.what == "list":
            SEEN.append(x.detach().mean())
        elif self.what == "generator":
            factor = random.random()
        elif len(x) not in CACHE:
            CACHE[len(x)] = torch.ones(1, device=x.device)
        return super().forward(x) * factor


class Own:
    made = 0


CACHE: dict[int, Tensor] = {}
SEEN: list[Tensor] = []


@pytest.mark.parametrize("what", ["object", "set", "list", "generator", "cache"])
def test_nothing_is_left_behind(what: str) -> None:
    """What the code writes is written once in a step, as on one device; no fake tensor stays."""

    def code(self: Any, x: Tensor) -> tuple[Tensor, ...]:
        h = self.a(x)
        seen = [torch.stack(SEEN).sum()] if what == "list" else []
        SEEN.clear()
        return h, *seen

    both(code, {"a": Counts(what)}, True, between=CACHE.clear, waits=False)
    assert all(type(tensor) is Tensor for tensor in CACHE.values())


def test_an_attribute_of_a_class_is_put_back() -> None:
    """Two layers of a class count their calls together."""
    model = Net(
        lambda self, x: (self.a(x), self.z(x), self.far(x)), a=Counts("class"), z=linear(), far=linear()
    )
    cluster = distribute(model, values(), {"a": 0, "z": 0, "far": 1}, ["z"], reorder=True)
    Counts.made = 0
    for _ in range(3):
        with cluster:
            model(values())
    assert Counts.made == 3


class ByConstant(nn.Module):
    factor = 2

    def forward(self, x: Tensor) -> Tensor:
        return x if self.factor == 1 else x * self.factor


@pytest.mark.parametrize("reorder", LAUNCHERS)
def test_constants_of_classes_are_seen(reorder: Any) -> None:
    """Changed between steps, the new one counts; changed while a layer waits, the error says so."""

    def code(self: Any, x: Tensor) -> tuple[Tensor]:
        h = self.p(self.a(x))
        if SETTING["late"]:
            ByConstant.factor += 1
        return (h,)

    try:
        both(
            code,
            {"a": linear(), "p": ByConstant()},
            reorder,
            between=lambda: setattr(ByConstant, "factor", 1),
        )
        with pytest.raises(BaechiError, match=r"p: it was changed"):
            both(code, {"a": linear(), "p": ByConstant()}, reorder, between=lambda: SETTING.update(late=True))
    finally:
        ByConstant.factor = 2


class Cell(nn.Linear):
    """A recurrent cell: output and state are one tensor."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        h = torch.tanh(super().forward(x))
        return h, h


@pytest.mark.parametrize("reorder", LAUNCHERS)
def test_a_value_that_is_logged_keeps_its_gradient(reorder: Any) -> None:
    """The launch is under `no_grad`; an alias that it makes has the history of its tensor."""

    def code(self: Any, x: Tensor) -> tuple[Tensor]:
        out, state = self.a(x)
        if SETTING["late"]:
            with torch.no_grad():
                float(out.mean())
        return (out * 2 + state,)

    both(code, {"a": Cell(8, 8)}, reorder, between=lambda: SETTING.update(late=True))


def conjugate(self: Any, x: Tensor) -> tuple[Tensor]:
    h = torch.complex(self.a(x), x).conj()
    return (torch.view_as_real(h.resolve_conj()) * (2 if h.is_conj() else 1),)


def dual(self: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    h = self.b(x)
    with forward_ad.dual_level():
        found = forward_ad.unpack_dual(self.a(forward_ad.make_dual(h, torch.ones_like(h))))
        assert found.tangent is not None
        return found.primal, found.tangent * 1


class Doubling(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result * 2 if func._opname in ("addmm", "mm") else result


def dispatch_mode(self: Any, x: Tensor) -> tuple[Tensor]:
    h = self.a(x)
    if not SETTING["late"]:
        return (h + 1,)
    with Doubling():
        return (h + 1,)


def caught(self: Any, x: Tensor) -> tuple[Tensor]:
    h = self.a(x)
    shift = 100.0 if SETTING["late"] else -100.0
    try:
        found = torch.linalg.cholesky(h @ h.T - shift * torch.eye(3))
    except torch.linalg.LinAlgError:
        found = torch.linalg.cholesky(h @ h.T + 100 * torch.eye(3))
    return (found,)


def caught_late(self: Any, x: Tensor) -> tuple[Tensor]:
    try:
        e = self.e(torch.full((3,), 100 if SETTING["late"] else 1))
        k = self.a(e)
        if SETTING["late"]:
            float(e.sum())
    except IndexError:
        k = x * 1
    return (k,)


def named(self: Any, x: Tensor) -> tuple[Tensor]:
    h = self.a(x)
    return (h * (2 if hasattr(h, "meta") or hasattr(h, "task") else 1),)


@pytest.mark.parametrize("code", [conjugate, dual, dispatch_mode, caught, caught_late, named])
@pytest.mark.parametrize("reorder", LAUNCHERS)
def test_code_around_what_waits(reorder: Any, code: Callable[..., Any]) -> None:
    """Code that asks for more than values, catches errors, or has modes of its own."""
    layers = {"a": linear(), **({"b": linear()} if code is dual else {})}
    layers |= {"e": nn.Embedding(10, 8)} if code is caught_late else {}
    both(code, layers, reorder, between=lambda: SETTING.update(late=True), waits=False)


def test_notes_are_bounded_where_nothing_waits() -> None:
    """Under autocast no layer waits, and a layer with another number in each step leaves no note behind."""
    model = Net(side_by_side, a=linear(), z=linear(), far=linear())
    cluster = distribute(model, values(), {"a": 0, "z": 0, "far": 1}, ["z"], reorder=True)
    outcomes = runtime_of(model).outcomes
    for number in range(50):
        model.a.number = number  # type: ignore[assignment, union-attr]
        with cluster, torch.autocast("cpu", dtype=torch.bfloat16):
            model(values())
    assert len(outcomes._keys) == 0
    outcomes._most = 10
    for number in range(50):
        model.a.number = number  # type: ignore[assignment, union-attr]
        with cluster:
            model(values())
    assert len(outcomes._keys) <= 10


def test_an_interrupt_while_a_thread_starts_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread runs already when the exception comes: it ends by itself."""
    model = Net(side_by_side, a=linear(), z=linear(), far=linear())
    distribute(model, values(), {"a": 0, "z": 0, "far": 1}, ["z"], reorder="threads")
    started, threads = virtual.devices.started, threading.active_count()

    def interrupted(function: Callable[[], None]) -> Callable[[], None]:
        ends.append(started(function))
        raise KeyboardInterrupt

    ends: list[Callable[[], None]] = []
    monkeypatch.setattr(virtual.devices, "started", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model(values())
    for end in ends:
        end()
    assert ends and threading.active_count() == threads
    assert baechi.plan_of(model) is not None
