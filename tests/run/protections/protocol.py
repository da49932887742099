"""The check of the reordering protocol: it finds nothing wrong as things are, and something without a row.

A `Scenario` is a little model, a plan, and what must come of it. Its `Row`s remove one protection each.
`deviations` compares its steps with the plain model's and with the plan.
"""

import gc
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from architectures.base import loss_of
from order.interleaved import interleaved
from run.launched import runtime_of
from run.protections.models import Net
from run.protections.rows import Row
from run.protections.scenarios import SCENARIOS, Scenario
from same import Result, identical
from torch import Tensor

import baechi
from baechi.errors import BaechiError
from baechi.run.deferred.tensor import Deferred
from baechi.run.launch.schedule import Schedule
from baechi.run.step.glue import GlueMode
from baechi.run.step.step import Step
from baechi.torchlib.tensors.pytree import tensors_in

OWN = (Schedule, Step, GlueMode, Deferred)
"""What nothing may keep alive when a step is over."""


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
