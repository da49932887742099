"""Every wait, record and hold of the runtime is needed: without it the clocks list it, or numbers change.

`ROWS` leave out one protection each. A model on which it matters runs with several orders of late work;
as things are nothing is found, and without the protection something is.
"""

import contextlib
import copy
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from architectures.base import loss_of, noise, seeded
from run.worlds import Net
from torch import Tensor, nn

import baechi
from accelerator import ToyMachine
from baechi.backend import transfer
from baechi.backend.real.devices import TorchDevices
from baechi.backend.real.streams import TorchStreams
from baechi.run.step import step
from baechi.run.step.step import Step

from .devices import TWO, cluster, there, whole

pytestmark = pytest.mark.default_cases(1)

SEEDS = 6
HOST = {"x": noise(48, 8)}

Layers = dict[str, Callable[[], nn.Module]]


def exchange(self: Any, x: Tensor) -> Any:
    """Two towers; each sends its first output to the other one, and then rectifies it in place."""
    left, right = self.left(x), self.right(x)
    from_left, from_right = self.from_left(left), self.from_right(right)
    left, right = self.rectify_left(left), self.rectify_right(right)
    return self.head(torch.cat([left + from_right, right + from_left], dim=1))


class Squeeze(nn.Module):
    """What it does with its input keeps the device busy; autograd saves nothing of what it returns."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8) / 3)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(4):
            x = torch.tanh(x) @ self.weight
        return x


TOWERS: Layers = {
    **dict.fromkeys(("left", "right"), Squeeze),
    **dict.fromkeys(("rectify_left", "rectify_right"), lambda: nn.ReLU(inplace=True)),
    **dict.fromkeys(("from_left", "from_right"), Squeeze),
    "head": lambda: nn.Linear(16, 3),
}
WHERE = {"": 0, "right": 1, "rectify_right": 1, "from_left": 1}


def dropped(self: Any, x: Tensor) -> Any:
    """What is sent is let go of at once, and so is what arrived; then others take memory."""
    y = self.b(self.a(x))
    z = self.d(self.c(x))
    w = self.f(self.e(x))
    return self.head(y) + self.tail(z) + w


DROPPED = dict.fromkeys(["a", "b", "c", "d", "e", "f", "head", "tail"], Squeeze)
THERE = {"": 0, "b": 1, "d": 1, "f": 1}


def shared(self: Any, x: Tensor) -> Any:
    """A gradient that is sent, and that autograd adds to in place afterwards."""
    t = self.a(x)
    v = self.v(x)
    w = v
    for _ in range(6):
        w = self.w(w)
    u = self.join(t, v)
    return self.head(u + w)


class Join(nn.Module):
    """Its backward hands one gradient to both of its inputs."""

    def forward(self, t: Tensor, v: Tensor) -> Tensor:
        return t + v


SHARED: Layers = {**dict.fromkeys(("a", "v", "w", "head"), Squeeze), "join": Join}


def unused(self: Any, x: Tensor) -> Any:
    """What is sent, and what a table gives, is no part of the output."""
    self.b(x)
    self.table()
    return self.a(x)


def tabled(self: Any, x: Tensor) -> Any:
    """A layer that is given nothing waits for no transfer."""
    return self.table() + self.b(self.a(x))


def silent(self: Any, x: Tensor) -> Any:
    """What it computes travels nowhere: the caller gets what it gave."""
    self.table()
    self.other()
    return x


def made(self: Any, x: Tensor) -> Any:
    """Tensors made in between belong to their first user, and are let go of at once."""
    y = self.a(x) * (torch.ones(8, device=x.device) * 3)
    z = self.b(y) * (torch.ones(8, device=x.device) * 2)
    return self.a(z) * (torch.ones(8, device=x.device) * 2)


class Table(nn.Module):
    """A layer of its own numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8) / 3)

    def forward(self) -> Tensor:
        return (self.weight @ self.weight).sum(0)


PAIR: Layers = {"a": Squeeze, "b": Squeeze, "table": Table}
TABLES: Layers = {"table": Table, "other": Table}
APART = {"": 0, "b": 1, "table": 1}


@dataclass(frozen=True)
class World:
    """A model, where its layers lie, and whether it trains; outputs stay where calls overlap."""

    code: Callable[..., Any]
    layers: Layers
    where: dict[str, int]
    training: bool = True
    parts: bool = False
    home: str = "toy:0"
    stay: bool = False

    def __str__(self) -> str:
        how = "trained" if self.training else "inferred"
        return f"{self.code.__name__}-{how}{'-parts' * self.parts}{'-stay' * self.stay}"


def deviations(toy: ToyMachine, world: World) -> set[str]:
    """Which of the two proofs finds something: `clocks`, `numbers`."""
    plain = seeded(lambda: Net(world.code, world.layers))().train(world.training)
    model = copy.deepcopy(plain)
    plain = whole(lambda: plain)
    devices = cluster("toy:0/0", "toy:0/1") if world.parts else TWO
    graph = baechi.profile(model, HOST, cluster=TWO, training=world.training, source="estimate")
    plan = baechi.Plan.from_device_map(graph, devices, world.where)
    baechi.assign(model, plan, reorder=False, outputs="device" if world.stay else "inputs")
    found: set[str] = set()
    for seed in range(SEEDS):
        toy.restart(seed=seed)
        run = _run_overlapping if world.stay else _run
        one, _ = run(plain, world, "toy:0")
        other, faults = run(model, world, world.home)
        found |= {"clocks"} if faults + toy.faults() else set()
        same = all(torch.allclose(a, b, atol=1e-5) for a, b in zip(one, other, strict=True))
        found |= set() if same else {"numbers"}
        toy.restart(late=False)
    return found


def _run(model: nn.Module, world: World, home: str) -> tuple[list[Tensor], list[str]]:
    machine = ToyMachine.get()
    kept = []
    given = [there(noise(48, 8, seed=number), home) for number in range(2)]  # which waits for the device
    for x in given:
        model.zero_grad()
        with torch.set_grad_enabled(world.training):
            out = model(x)
            if world.training:
                loss_of(out).backward()
        kept.append(out.detach().clone())
        if world.training:
            kept += [weight.grad.clone() for weight in model.parameters()]  # type: ignore[union-attr]
        del out
        with torch.no_grad():  # all is the caller's again
            for tensor in (x, *model.parameters()):
                tensor.mul_(1.01)
    kept = [tensor.cpu() for tensor in kept]
    return kept, machine.faults()


def _run_overlapping(model: nn.Module, world: World, home: str) -> tuple[list[Tensor], list[str]]:
    machine = ToyMachine.get()
    given = [there(noise(48, 8, seed=number), home) for number in range(3)]
    model.zero_grad()
    losses = [loss_of(model(x)) for x in given]
    with torch.no_grad():
        for x in given:
            x.mul_(1.01)
    for loss in losses:
        loss.backward()
    with torch.no_grad():
        kept = [weight.grad.clone() for weight in model.parameters()]  # type: ignore[union-attr]
        for weight in model.parameters():
            weight.mul_(1.01)
    return [tensor.cpu() for tensor in [loss.detach() for loss in losses] + kept], machine.faults()


def when(condition: Callable[..., bool], otherwise: Callable[..., Any]) -> Callable[..., Any]:
    """Does nothing where a condition holds for its arguments."""

    def chosen(*args: Any, **kwargs: Any) -> Any:
        return None if condition(*args) else otherwise(*args, **kwargs)

    return chosen


def in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


@dataclass(frozen=True)
class Row:
    """A protection, how it is left out, and where that shows."""

    name: str
    owner: Any
    attribute: str
    without: Any
    world: World

    def __str__(self) -> str:
        return self.name.replace(" ", "-")


_wait, _use = TorchDevices.wait, TorchDevices.use


def is_transfer(self: TorchDevices, stream: Any) -> str:
    """`compute`, or `transfer` for a stream of the pool."""
    return "transfer" if stream is not None and stream.stream_id else "compute"


def waits(waiting: str, backward: bool) -> Callable[..., bool]:
    """Waits of a kind of stream, in forward or in backward."""
    return lambda self, stream, event: is_transfer(self, stream) == waiting and in_backward() == backward


def uses(user: str, backward: bool) -> Callable[..., bool]:
    """Records of a kind of stream, in forward or in backward."""
    return lambda self, tensor, stream: is_transfer(self, stream) == user and in_backward() == backward


def adds(self: TorchDevices, stream: Any, event: Any) -> bool:
    """The wait that comes when a gradient has been sent, for the stream that it was made on."""
    return sys._getframe(2).f_code.co_name == "backward" and not stream.stream_id


def adopts(*_: Any) -> bool:
    """The wait and the record when a tensor that belongs nowhere gets its first user."""
    return sys._getframe(2).f_code.co_name == "claim"


@contextlib.contextmanager
def at_end_only(self: TorchStreams) -> Iterator[None]:
    yield
    for gpu in self._streams_of_gpu:
        self.compute(gpu)


@contextlib.contextmanager
def at_beginning_only(self: TorchStreams) -> Iterator[None]:
    for gpu, streams in self._streams_of_gpu.items():
        begun = self.driver.current_stream(self.device(gpu)).record_event()
        for stream in streams:
            stream.wait_event(begun)
    yield


def nothing(*_: Any, **__: Any) -> None:
    """Does nothing."""


TRAINED = World(exchange, TOWERS, WHERE)
INFERRED = World(exchange, TOWERS, WHERE, training=False)
PARTED = World(exchange, TOWERS, WHERE, training=False, parts=True)
PARTED_TRAINED = World(exchange, TOWERS, WHERE, parts=True)
LETS_GO = World(dropped, DROPPED, THERE, training=False)
LETS_GO_TRAINED = World(dropped, DROPPED, THERE)
ADDS = World(shared, SHARED, {"": 1, "a": 0})
STAYS = World(exchange, TOWERS, WHERE, stay=True)
ADDS_AND_STAYS = World(shared, SHARED, {"": 1, "a": 0}, stay=True)
UNUSED = World(unused, PAIR, APART, training=False)
SILENT = World(silent, TABLES, {"": 0, "table": 1}, training=False, parts=True)
TABLED = World(tabled, PAIR, APART, training=False, parts=True)
MADE = World(made, {"a": Squeeze, "b": Squeeze}, {"": 0, "b": 1}, training=False, parts=True)

WORLDS = (
    UNUSED,
    SILENT,
    TABLED,
    MADE,
    TRAINED,
    INFERRED,
    PARTED,
    PARTED_TRAINED,
    LETS_GO,
    LETS_GO_TRAINED,
    ADDS,
    STAYS,
    ADDS_AND_STAYS,
)

# Not among them: `use` of a sent gradient by what it arrives at. Autograd itself records what a node gets
# from another stream, so leaving ours out shows nowhere; it is the same line of code as in forward.
ROWS = [
    Row("tx waits for the producer", TorchDevices, "wait", when(waits("transfer", False), _wait), INFERRED),
    Row("tx waits for the gradient", TorchDevices, "wait", when(waits("transfer", True), _wait), TRAINED),
    Row("the consumer waits for rx", TorchDevices, "wait", when(waits("compute", False), _wait), INFERRED),
    Row("backward waits for rx", TorchDevices, "wait", when(waits("compute", True), _wait), TRAINED),
    Row("the source is recorded on tx", TorchDevices, "use", when(uses("transfer", False), _use), LETS_GO),
    Row("the copy is recorded by its user", TorchDevices, "use", when(uses("compute", False), _use), LETS_GO),
    Row("what adds to a gradient waits", TorchDevices, "wait", when(adds, _wait), ADDS),
    Row("who writes in place waits", step, "wait_for_readers", nothing, INFERRED),
    Row("the caller waits", Step, "close", nothing, UNUSED),
    Row("the next call waits for rx", TorchDevices, "wait", when(waits("compute", False), _wait), STAYS),
    Row("the loop's gradients wait for rx", TorchDevices, "wait", when(waits("compute", True), _wait), STAYS),
    Row("who else has a gradient is looked at", transfer, "is_last_reference", lambda _: True, ADDS),
    Row("what adds to the loop's gradients waits", TorchDevices, "wait", when(adds, _wait), ADDS_AND_STAYS),
    Row("what is made waits for its maker", TorchDevices, "wait", when(adopts, _wait), MADE),
    Row("what is made is recorded by its user", TorchDevices, "use", when(adopts, _use), MADE),
    Row("parts begin after the caller", TorchStreams, "stepping", at_end_only, TABLED),
    Row("the caller goes on after parts", TorchStreams, "stepping", at_beginning_only, SILENT),
]


@pytest.mark.parametrize("world", WORLDS, ids=str)
def test_nothing_is_missing(toy: ToyMachine, world: World) -> None:
    """As things are, neither proof finds anything."""
    assert deviations(toy, world) == set()


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_each_is_needed(toy: ToyMachine, row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it at least one of the proofs finds something."""
    with monkeypatch.context() as patch:
        patch.setattr(row.owner, row.attribute, row.without)
        found = deviations(toy, row.world)
    print(row.name, found)
    assert found
