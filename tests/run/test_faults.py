"""Whatever goes wrong in a step reaches the caller whole, nothing of it stays, the next step works."""

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import networkx as nx
import pytest
import torch
import torch._functorch.vmap
import torch.utils.checkpoint
from architectures.base import noise, seeded
from run.launched import LAUNCHERS
from same import assert_same, step
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional as F

import baechi
from baechi.backend.virtual.devices import VirtualDevices
from baechi.backend.virtual.machine import threads as virtual_threads
from baechi.errors import BaechiError
from baechi.order import waiting_layers
from baechi.run.binding import binding_of
from baechi.run.reorder.deferred_values import Deferred
from baechi.run.runtime import Runtime

pytestmark = pytest.mark.default_cases(1)

MEMORY_BYTES = 64 * 2**20


class Broken(Exception):
    """What goes wrong on purpose."""


class Trap:
    """Where something goes wrong, and what; everything that the layers made is noted, not held."""

    __module__ = "baechi.trap"  # as of a library: layers that write state of the model's own do not wait

    def __init__(self) -> None:
        self.place = ""
        self.error: type[BaseException] = Broken
        self.sprung: list[str] = []
        self.made: list[weakref.ref[Tensor]] = []
        self.keeps = False
        self.kept: list[Tensor] = []

    def at(self, place: str, result: Tensor | None = None) -> None:
        """The model has come to a place."""
        if result is not None:
            self.made.append(weakref.ref(result))
            if self.keeps:
                self.kept.append(result)
        if place == self.place:
            self.sprung.append(threading.current_thread().name)
            if self.error is baechi.DeviceMemoryError:
                assert result is not None
                result.new_empty(2 * MEMORY_BYTES, dtype=torch.uint8)
            raise self.error(f"on purpose in {place}")


TRAP = Trap()


# --- models


class Part(nn.Module):
    """A layer that can go wrong after it has computed, or in its backward."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.inner = nn.Parameter(torch.randn(8, 8) / 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = Backward.apply(x @ self.inner, self.name)  # type: ignore[no-untyped-call]
        TRAP.at(self.name, y)
        return y


class Backward(torch.autograd.Function):
    """Nothing in forward; goes wrong in backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, name: str) -> Tensor:
        ctx.name = name
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        TRAP.at(f"backward of {ctx.name}")
        return grads[0] * 1, None


class Branches(nn.Module):
    """Two branches with glue between them, written in place."""

    def __init__(self) -> None:
        super().__init__()
        for name in "abcdef":
            setattr(self, name, Part(name))

    def forward(self, x: Tensor) -> Tensor:
        left, right = self.a(x), self.b(x)
        left.add_(1)
        mixed = self.c(left * right)
        TRAP.at("the host", mixed)
        result: Tensor = mixed + self.d(right) + self.e(x) * self.f(x)
        return result


class Chain(nn.Module):
    """A chain in a container, beside a layer that is called three times."""

    def __init__(self) -> None:
        super().__init__()
        self.chain = nn.Sequential(Part("chain.0"), nn.Tanh(), Part("chain.2"), nn.Dropout(0.5))
        self.again, self.last = Part("again"), Part("last")

    def forward(self, x: Tensor) -> Tensor:
        chain = self.chain(x)
        TRAP.at("the host", chain)
        again = self.again(chain) + self.again(x)
        result: Tensor = self.last(x) + self.again(again.relu_())
        return result


class Fan(nn.Module):
    """Layers in a list, read by one that comes last, with the norm of batches in between."""

    def __init__(self) -> None:
        super().__init__()
        self.fan = nn.ModuleList([Part(f"fan.{number}") for number in range(4)])
        self.norm, self.last = nn.BatchNorm1d(8), Part("last")

    def forward(self, x: Tensor) -> Tensor:
        outputs = [self.norm(layer(x)) for layer in self.fan]
        TRAP.at("the host", outputs[0])
        result: Tensor = self.last(torch.stack(outputs).sum(0))
        return result


MODELS = (Branches, Chain, Fan)


def inputs(batch: int = 4) -> dict[str, Tensor]:
    return {"x": noise(batch, 8)}


def late(graph: baechi.LayerGraph, cluster: baechi.Cluster) -> baechi.Plan:
    """Random devices; what the code reaches last launches first, as far as it can: much waits."""
    code = {name: place for place, name in enumerate(graph.code_order())}
    device_of = baechi.place(graph, cluster, "random:4").device_of
    placed = graph.subgraph(graph.placed())
    order = nx.lexicographical_topological_sort(placed, key=lambda name: -code[name])
    return baechi.Plan(graph, cluster, device_of, tuple(order))


class World:
    """A plain model and a distributed one that went through one good step each.

    Args:
        build: the model's class.
        reorder: who launches what waits.
    """

    def __init__(self, build: type[nn.Module], reorder: Any) -> None:
        self.plain, self.model = seeded(build)(), seeded(build)()
        self.cluster = baechi.Cluster.virtual(2, memory=MEMORY_BYTES)
        baechi.distribute(self.model, inputs(), cluster=self.cluster, placer=late, reorder=reorder)
        self.buffers = {name: buffer.clone() for name, buffer in self.plain.named_buffers()}
        self.reference = step(self.plain, inputs(), training=True)
        with self.cluster:
            self.result = step(self.model, inputs(), training=True)
        assert_same(self.reference, self.result, tolerance=2e-5)
        waits = {name.partition("#")[0] for name in waiting_layers(self.runtime.order)}
        self.waiting = [name for name in self.names() if name in waits]

    @property
    def runtime(self) -> Runtime:
        binding = binding_of(self.model)
        assert binding is not None
        return binding.runtime

    def names(self) -> list[str]:
        """The layers that can go wrong."""
        return [name for name, module in self.plain.named_modules() if isinstance(module, Part)]

    def works(self) -> None:
        """The next step gives the plain model's numbers."""
        with torch.no_grad():
            for model in (self.plain, self.model):
                for name, buffer in model.named_buffers():  # a failed step may have come to any of them
                    buffer.copy_(self.buffers[name])
        with self.cluster:
            result = step(self.model, inputs(), training=True)
        assert_same(self.reference, result, tolerance=2e-5)


def noted(model: nn.Module) -> list[Any]:
    """Each parameter's memory and content, and its gradient's."""
    found: list[Any] = []
    for parameter in model.parameters():
        grad = parameter.grad
        found.append(
            (id(grad), parameter.data_ptr(), parameter.tolist(), None if grad is None else grad.tolist())
        )
    return found


def entrances() -> list[Any]:
    """What baechi replaces in torch during a step."""
    return [
        torch.autograd.Function.__dict__["apply"],
        torch._functorch.vmap._add_batch_dim,
        torch.utils.checkpoint._checkpoint_without_reentrant_generator,
    ]


OWN = entrances()
OLD_THREADS: set[threading.Thread] = set()


@pytest.fixture(autouse=True, scope="module")
def others_are_old() -> Iterator[None]:
    """What is there already is none of ours: objects, and threads of compilers and progress bars."""
    OLD_THREADS.update(threading.enumerate())
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
    OLD_THREADS.clear()


@contextmanager
def trap(place: str, error: type[BaseException] = Broken) -> Iterator[None]:
    """Something goes wrong there, and nowhere else."""
    TRAP.place, TRAP.error = place, error
    TRAP.made.clear()
    TRAP.sprung.clear()
    try:
        yield
    finally:
        TRAP.place = ""


def threads_end() -> None:
    """Every thread that began meanwhile has ended, or is about to."""
    for thread in set(threading.enumerate()) - OLD_THREADS:
        thread.join(timeout=60)
        assert not thread.is_alive()


def check_clean(world: World, *, backward: bool = False) -> None:
    """Nothing of a failed step is left, and the next one works."""
    assert torch._C._len_torch_function_stack() == torch._C._len_torch_dispatch_stack() == 0
    assert all(now is own for now, own in zip(entrances(), OWN, strict=True))
    threads_end()
    if backward:  # torch's engine keeps what was ready to run until it is called again
        world.works()
    gc.collect()
    assert all(made() is None for made in TRAP.made)
    world.works()


def check_fails(world: World, place: str, error: type[BaseException] = Broken) -> list[str]:
    """A step in which something goes wrong in forward; returns the exception's notes."""
    before = noted(world.model)
    with trap(place, error), world.cluster:
        with pytest.raises(error) as caught:
            world.model(**inputs())
        raised = caught.value
        assert type(raised) is error
        assert str(raised) == f"on purpose in {place}" or error is baechi.DeviceMemoryError
        notes = list(getattr(raised, "__notes__", ()))
        assert len(TRAP.sprung) == 1
    del caught, raised
    assert noted(world.model) == before
    check_clean(world)
    return notes


@pytest.mark.parametrize("reorder", LAUNCHERS)
@pytest.mark.parametrize("build", MODELS)
def test_a_layer_raises(build: type[nn.Module], reorder: str) -> None:
    """Each layer in turn, waiting or not: the exception itself, with the layer's name and device."""
    world = World(build, reorder)
    assert world.waiting and set(world.waiting) < set(world.names())
    for name in world.names():
        notes = check_fails(world, name)
        device = world.runtime.plan.device_of[name]
        assert notes == [f"in layer {name} (Part) on {device}"]


@pytest.mark.parametrize("reorder", LAUNCHERS)
@pytest.mark.parametrize("build", MODELS)
def test_out_of_memory(build: type[nn.Module], reorder: str) -> None:
    """Each layer in turn asks for more than its device has: the error names both, and all is as it was."""
    world = World(build, reorder)
    for name in world.names():
        notes = check_fails(world, name, baechi.DeviceMemoryError)
        assert notes == [f"in layer {name} (Part) on {world.runtime.plan.device_of[name]}"]


@pytest.mark.parametrize("reorder", LAUNCHERS)
@pytest.mark.parametrize("build", MODELS)
def test_the_host_raises(build: type[nn.Module], reorder: str) -> None:
    """The model's own code raises while layers wait: they are dropped; the exception is as it was."""
    world = World(build, reorder)
    assert check_fails(world, "the host") == []


@pytest.mark.parametrize("reorder", LAUNCHERS)
@pytest.mark.parametrize("build", MODELS)
def test_control_c_in_a_layer(build: type[nn.Module], reorder: str) -> None:
    """Ctrl-C while any layer launches, in whichever thread, or in the model's own code."""
    world = World(build, reorder)
    for place in (*world.names(), "the host"):
        assert check_fails(world, place, KeyboardInterrupt) == []


@pytest.mark.parametrize("reorder", LAUNCHERS)
def test_a_hook_raises(reorder: str) -> None:
    """Hooks of a layer, before and after it, and of the model: what they raise reaches the caller."""
    for error in (Broken, KeyboardInterrupt):
        world = World(Branches, reorder)
        for name in ("", "a", "c", "d"):
            for register in ("register_forward_pre_hook", "register_forward_hook"):
                module = world.model.get_submodule(name)
                handle = getattr(module, register)(lambda *args: TRAP.at("a hook"))
                assert check_fails(world, "a hook", error) == []
                handle.remove()


@pytest.mark.parametrize("reorder", LAUNCHERS)
@pytest.mark.parametrize("build", MODELS)
def test_backward_raises(build: type[nn.Module], reorder: str) -> None:
    """The backward of each layer in turn raises: the exception itself, and the next step works."""
    world = World(build, reorder)
    for name in world.names():
        for error in (Broken, KeyboardInterrupt):
            place = f"backward of {name}"
            with trap(place, error), world.cluster:
                outputs = world.model(**inputs())
                with pytest.raises(error) as caught:
                    outputs.sum().backward()
                assert str(caught.value) == f"on purpose in {place}"
            del caught, outputs
            check_clean(world, backward=True)


@pytest.mark.parametrize("reorder", LAUNCHERS)
def test_a_value_kept_from_a_failed_step(reorder: str) -> None:
    """A value that the failed step never computed raises when it is used; others are tensors."""
    world = World(Branches, reorder)
    TRAP.keeps = True
    try:
        with trap("the host"), world.cluster, pytest.raises(Broken):
            world.model(**inputs())
        kept = [value for value in TRAP.kept if not isinstance(value, FakeTensor)]
    finally:
        TRAP.keeps = False
        TRAP.kept.clear()
    deferred = [value for value in kept if type(value) is Deferred]
    assert deferred
    for value in deferred:
        assert value.shape == (4, 8)
        uses: list[Callable[[Any], Any]] = [
            lambda v: v + 1, lambda v: v.add_(1), float, repr, Tensor.tolist, lambda v: v.sum().backward(),
            lambda v: torch.stack([v, v]), lambda v: v[0], lambda v: F.linear(v, torch.ones(8, 8)),
        ]  # fmt: skip
        for use in uses:
            with pytest.raises(BaechiError, match="never computed"):
                use(value)
    del kept, deferred, value
    check_clean(world)


class Interrupting:
    """A flag for which the host's wait number `at` is interrupted by Ctrl-C."""

    waits = 0
    at = 0
    moment = ""

    def __init__(self, flag: Any) -> None:
        self._flag = flag

    def set(self) -> None:
        self._flag.set()

    def is_set(self) -> bool:
        return bool(self._flag.is_set())

    def wait(self) -> bool:
        if threading.current_thread() is threading.main_thread():
            Interrupting.waits += 1
            if Interrupting.waits == Interrupting.at:
                if Interrupting.moment == "after":
                    self._flag.wait()
                raise KeyboardInterrupt("on purpose in a wait")
        return bool(self._flag.wait())


class Alarm(threading.Event):
    """What a thread of the emulated host sleeps on; Ctrl-C comes while it does, and another thread runs."""

    def wait(self, timeout: float | None = None) -> bool:
        if threading.current_thread() is threading.main_thread():
            Interrupting.waits += 1
            if Interrupting.waits == Interrupting.at:
                raise KeyboardInterrupt("on purpose in a wait")
        return super().wait(timeout)


def sleeps_on_an_alarm(runner: Callable[..., Any]) -> Callable[..., Any]:
    """The emulator's runners with an `Alarm` each."""
    return lambda *args, **kwargs: runner(*args, **kwargs, turn=Alarm())


@pytest.mark.parametrize("moment", ["before", "during", "after"])
@pytest.mark.parametrize("build", MODELS)
def test_control_c_while_the_host_waits(
    build: type[nn.Module], moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C before, in or after any of the host's waits for a thread."""
    world = World(build, "threads")
    flag = VirtualDevices.flag
    if moment == "during":
        monkeypatch.setattr(virtual_threads, "_Runner", sleeps_on_an_alarm(virtual_threads._Runner))
    else:
        monkeypatch.setattr(VirtualDevices, "flag", lambda backend: Interrupting(flag(backend)))
    monkeypatch.setattr(Interrupting, "moment", moment)
    monkeypatch.setattr(Interrupting, "waits", 0)
    monkeypatch.setattr(Interrupting, "at", 0)
    world.works()
    waits = Interrupting.waits
    assert waits >= 3
    for at in range(1, waits + 1):
        monkeypatch.setattr(Interrupting, "waits", 0)
        monkeypatch.setattr(Interrupting, "at", at)
        before = noted(world.model)
        with trap(""), world.cluster, pytest.raises(KeyboardInterrupt, match="in a wait"):
            world.model(**inputs())
        assert noted(world.model) == before
        check_clean(world)
