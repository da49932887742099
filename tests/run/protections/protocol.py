"""The protections of the reordering protocol: how to remove each one, and a model on which that shows.

A `Scenario` is a little model, a plan, and what must come of it. Its `Row`s remove one protection each.
`deviations` is the check: it finds nothing wrong as things are, and something where a row is at work.
"""

import gc
import sys
import threading
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import torch
from architectures.base import loss_of, noise, seeded
from order.interleaved import interleaved
from same import Result, identical
from torch import Tensor, nn

import baechi
from baechi.errors import BaechiError
from baechi.run.deferred.tensor import Deferred
from baechi.run.launch.schedule import Schedule
from baechi.run.runtime import Runtime, binding_of
from baechi.run.step.glue import GlueMode
from baechi.run.step.step import Step
from baechi.torchlib.tensors.pytree import tensors_in

OWN = (Schedule, Step, GlueMode, Deferred)
"""What nothing may keep alive when a step is over."""


# --- little models


class Net(nn.Module):
    """Layers by name around a function that is its forward; one more, `far`, so that there are two devices.

    `captured` says whether this is the run that was captured, `number` which of the later ones;
    `notes` is what the function saw, `kept` what it put away, `watched` what nobody may hold after it;
    `backwards` are the layers in the order of their gradients.
    """

    def __init__(self, code: Callable[..., Any], layers: Mapping[str, Callable[[], nn.Module]]) -> None:
        super().__init__()
        self.code = code
        self.captured, self.number = True, 0
        self.notes: list[Any] = []
        self.kept: list[Any] = []
        self.watched: list[weakref.ref[Tensor]] = []
        self.backwards: list[str] = []
        self.far = Shift()
        for name, layer in layers.items():
            setattr(self, name, layer())
        for name, weight in self.named_parameters():
            weight.register_post_accumulate_grad_hook(self._noting(name))

    def _noting(self, name: str) -> Callable[[Tensor], None]:
        return lambda _: self.backwards.append(name.partition(".")[0])

    def watch(self, tensor: Tensor) -> None:
        """Nobody may hold this tensor when the step is over."""
        self.watched.append(weakref.ref(tensor))

    def forward(self, **inputs: Any) -> Any:
        self.notes, self.kept, self.watched, self.backwards = [], [], [], []
        self.number += 1
        self.far(torch.ones(8))
        return self.code(self, **inputs)


class Shift(nn.Module):
    """Adds its weight: autograd saves nothing of its input, which may be written afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.weight


def linear() -> nn.Module:
    return nn.Linear(8, 8)


def shifts(names: str) -> dict[str, Callable[[], nn.Module]]:
    """A `Shift` for each letter."""
    return dict.fromkeys(names, Shift)


def linears(names: str) -> dict[str, Callable[[], nn.Module]]:
    """A linear layer for each letter."""
    return dict.fromkeys(names, linear)


def statistics(net: Net) -> None:
    """The running mean and variance of a normalization, on the net itself."""
    net.register_buffer("mean", torch.zeros(8))
    net.register_buffer("var", torch.ones(8))


# --- rows


@dataclass(frozen=True)
class Patch:
    """Something of the library put in the place of something else."""

    owner: Any
    name: str
    value: Any


@dataclass(frozen=True)
class Row:
    """One protection.

    Args:
        name: what protects.
        shows: what the check finds without it, as the beginning of a deviation (a regular expression).
        patches: how it is removed.
        launcher: with which launcher only it is needed; empty for any.
    """

    name: str
    shows: str
    patches: tuple[Patch, ...]
    launcher: str = ""

    @contextmanager
    def removed(self) -> Iterator[None]:
        """While this is open, the protection is not there."""
        with pytest.MonkeyPatch.context() as patch:
            for one in self.patches:
                patch.setattr(one.owner, one.name, one.value)
            yield


def row(name: str, shows: str, *patches: tuple[Any, str, Any], launcher: str = "") -> Row:
    """A row; its patches as owner, name and value."""
    return Row(name, shows, tuple([Patch(*patch) for patch in patches]), launcher)


def nothing(*_: Any, **__: Any) -> None:
    """Does nothing."""


def none_of(*_: Any) -> list[Any]:
    """Finds nothing."""
    return []


def when_called_by(function: str, value: Callable[..., Any], otherwise: Callable[..., Any]) -> Any:
    """A function that is another one for one caller."""

    def chosen(*args: Any, **kwargs: Any) -> Any:
        caller = sys._getframe(1).f_code.co_name
        return (value if caller == function else otherwise)(*args, **kwargs)

    return chosen


NUMBERS = r"output|gradient|buffer|notes"
ORDER = r"launched"
FORCED = r"forced"
RACE = r"StreamRaceError"
LEAK = r"alive"
ERROR = r"\w*Error"
RANDOM = r"random state|output"


# --- scenarios


def one_tensor() -> dict[str, Any]:
    return {"x": noise(3, 8)}


@dataclass(frozen=True)
class Scenario:
    """A model, a plan, and what must come of it.

    Args:
        code: the model's forward; its name is the scenario's.
        layers: the model's layers.
        order: the plan's order.
        rows: what it shows.
        launched: the layers of a step in the order in which they launch.
        devices: of those that are not on the first one.
        forced: what launches before its turn, by name.
        backward: the layers in the order of their gradients, if it must be this one.
        inputs: the model's inputs; made inside the emulation.
        launchers: in which thread what waits launches.
        training: with gradients, and a backward.
        captured_for_training: whether it was when it was captured.
        setup: done with a new model.
        after: what the caller does right after a call of the model.
        error: how a step must fail, if it must.
    """

    code: Callable[..., Any]
    layers: Mapping[str, Callable[[], nn.Module]]
    order: Sequence[str]
    rows: tuple[Row, ...]
    launched: str
    devices: Mapping[str, int | str] = field(default_factory=dict)
    forced: tuple[str, ...] = ()
    backward: str = ""
    inputs: Callable[[], dict[str, Any]] = one_tensor
    launchers: Collection[str] = ("host",)
    training: bool = True
    captured_for_training: bool = True
    setup: Callable[[Any], None] = nothing
    after: Callable[[Any, dict[str, Any]], None] = nothing
    error: str = ""

    @property
    def name(self) -> str:
        """The scenario's name."""
        return self.code.__name__

    def build(self) -> Net:
        """A new model."""
        model: Net = seeded(lambda: Net(self.code, self.layers))()  # type: ignore[assignment]
        self.setup(model)
        return model


SCENARIOS: list[Scenario] = []


def scenario(*rows: Row, **rest: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a scenario of a function: the forward of a `Net`."""

    def add(code: Callable[..., Any]) -> Callable[..., Any]:
        SCENARIOS.append(Scenario(code, rows=rows, **rest))
        return code

    return add


# --- the check


@dataclass(frozen=True)
class Left:
    """What a step leaves behind: results, what the code saw, the generator's state; and its outputs."""

    result: Result
    notes: list[Any]
    random: Tensor
    outputs: Any


STEPS = 2
"""One shows what a step leaves to the next."""

PATIENCE_S = 30.0
"""After this a step hangs; it takes a hundredth of that."""


def deviations(given: Scenario, launcher: str = "host") -> list[str]:
    """What is wrong with a scenario, in words; nothing if all is as on one device, and as planned."""
    gc.collect()
    gc.freeze()  # what is there already is none of ours: looking for what is left takes no time
    cluster = baechi.Cluster.virtual(3)
    plain, model = given.build(), given.build()
    with cluster:
        training = given.training and given.captured_for_training
        captured = given.build().train(training)
        graph = baechi.profile(captured, given.inputs(), cluster=cluster, training=training)
    plain.captured = model.captured = False
    expected = [] if given.error else [run(plain, given, number) for number in range(STEPS)]
    where = {"": 0, "far": 1, **given.devices}
    baechi.assign(model, interleaved(graph, cluster, where, given.order), reorder=launcher)
    return in_a_thread_of_its_own(lambda: steps(model, cluster, given, expected))


def in_a_thread_of_its_own(find: Callable[[], list[str]]) -> list[str]:
    """What a function finds; if it hangs it is left behind. Autograd counts nodes from zero there."""
    found: list[str] = []
    errors: list[BaseException] = []

    def look() -> None:
        torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            found.extend(find())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    for error in errors:
        raise error
    return ["hangs"] if thread.is_alive() else found


def steps(model: Net, cluster: baechi.Cluster, given: Scenario, expected: list[Left]) -> list[str]:
    """What is wrong with some steps of a distributed model."""
    found: list[str] = []
    held: list[Left] = []
    threads = threading.active_count()
    try:
        with cluster:
            try:
                for number in range(STEPS):
                    held.append(run(model, given, number))
                    found += launches(model, given)
                found += [] if not given.error else ["no error"]
            finally:
                found += [f"threads: {n} more" for n in [threading.active_count() - threads] if n]
                found += [f"modes: {n}" for n in [torch._C._len_torch_function_stack()] if n]
    except Exception as error:
        said = saying(error)
        found += [] if given.error and said.startswith(given.error) else [said]
    for one, other in zip(expected, held, strict=False):
        found += compared(one, other)
    return found + dropped(model) + alive(model)


def saying(error: Exception) -> str:
    """What an error says; one that nobody meant may not be able to."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return type(error).__name__


def dropped(model: Net) -> list[str]:
    """What was put away, if it can be used though it was never computed, or says something else."""
    found = []
    for value in model.kept:
        try:
            found.append(f"kept: {value + 1}")
        except BaechiError as error:
            found += [] if "was never computed" in str(error) else [f"kept: {error}"]
        except Exception as error:
            found.append(f"kept: {type(error).__name__}: {error}")
    return found


def run(model: Net, given: Scenario, number: int) -> Left:
    """One seeded step."""
    model.train(given.training).zero_grad()
    with torch.set_grad_enabled(given.training):
        inputs = given.inputs()
        torch.manual_seed(number)
        outputs = model(**inputs)
        given.after(model, inputs)
        if given.training:
            loss_of(outputs).backward()
    result = Result(
        [tensor.detach().clone() for tensor in tensors_in(outputs, inputs)],
        {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()},
        {name: tensor.detach().clone() for name, tensor in model.state_dict().items()},
    )
    return Left(result, model.notes, torch.get_rng_state(), outputs)


def compared(expected: Left, left: Left) -> list[str]:
    """In what a step differs from the plain model's; bit for bit."""
    one, other = expected.result, left.result
    pairs: dict[str, tuple[Tensor | None, Tensor | None]] = {
        f"output {n}": pair for n, pair in enumerate(zip(one.outputs, other.outputs, strict=True))
    }
    pairs |= {f"gradient of {name}": (grad, other.grads[name]) for name, grad in one.grads.items()}
    pairs |= {f"buffer {name}": (tensor, other.buffers[name]) for name, tensor in one.buffers.items()}
    pairs["random state"] = expected.random, left.random
    found = [what for what, (a, b) in pairs.items() if not same(a, b)]
    if expected.notes != left.notes:
        found.append(f"notes {left.notes} in place of {expected.notes}")
    return found


def same(one: Tensor | None, other: Tensor | None) -> bool:
    """Whether two tensors are equal bit for bit, or none is there."""
    return one is other if one is None or other is None else identical(one, other)


def launches(model: Net, given: Scenario) -> list[str]:
    """In what the last step differs from the plan: who launched when, and who was forced."""
    runtime = runtime_of(model)
    found = []
    launched = " ".join([layer for layer in runtime.launched if layer != "far"])
    if launched != given.launched:
        found.append(f"launched {launched} in place of {given.launched}")
    forced = tuple([one.name for one in runtime.forced])
    if forced != given.forced:
        found.append(f"forced {[str(one) for one in runtime.forced]} in place of {given.forced}")
    backward = " ".join(dict.fromkeys(model.backwards))
    if given.backward and backward != given.backward:
        found.append(f"backward {backward} in place of {given.backward}")
    return found


def alive(model: Net) -> list[str]:
    """What should be gone, and is not; what the model put away may be there."""
    gc.collect()
    kept = {id(value) for value in model.kept}
    left = [one for one in gc.get_objects() if isinstance(one, OWN) and id(one) not in kept]
    gone = [reference for reference in model.watched if reference() is not None]
    return [f"alive: {type(one).__name__}" for one in left] + ["alive: a tensor" for _ in gone]


def runtime_of(model: nn.Module) -> Runtime:
    """The runtime of a distributed model."""
    binding = binding_of(model)
    assert binding is not None
    return binding.runtime


# --- checks


@dataclass(frozen=True)
class Check:
    """Something that finds what is wrong, and what protects from it."""

    name: str
    find: Callable[[], list[str]]
    rows: tuple[Row, ...]


OTHERS: list[Check] = []


def check(*rows: Row) -> Callable[[Callable[[], list[str]]], Callable[[], list[str]]]:
    """Make a check of a function that finds what is wrong."""

    def add(find: Callable[[], list[str]]) -> Callable[[], list[str]]:
        OTHERS.append(Check(find.__name__, partial(in_a_thread_of_its_own, find), rows))
        return find

    return add


def all_checks() -> list[Check]:
    """Scenarios with each of their launchers, and other checks."""
    return [
        Check(
            f"{given.name}-{launcher}",
            partial(deviations, given, launcher),
            tuple([one for one in given.rows if one.launcher in ("", launcher)]),
        )
        for given in SCENARIOS
        for launcher in given.launchers
    ] + OTHERS
