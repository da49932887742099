"""Two steps in training and an evaluation, of a plain and of a distributed model, and how they compare."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from run.pipeline.by_loop import doubled
from same import Result
from torch import nn

import baechi
from baechi.records.inputs import Inputs
from baechi.torchlib.shards.weight import ShardedWeight
from baechi.torchlib.tensors.pytree import named_tensors
from wild.trials import by_loop
from wild.trials.common import dense, raised, said, seed
from wild.verdict import ROUNDING, ROUNDING_DOUBLE, Kind, Verdict, compare

_SHRINK = 0.9
"""Weights are multiplied by it between the steps: bit for bit the same in both, and what is stale shows."""


@dataclass(frozen=True)
class Found:
    """What is left behind.

    Args:
        outputs: by step and name.
        rest: gradients of the second step, and buffers.
    """

    outputs: dict[str, torch.Tensor]
    rest: Result


def plain(model: nn.Module, batch: Inputs, microbatches: int, loss: str) -> Found:
    """The steps of a plain model, part by part.

    Args:
        model: it is trained.
        batch: a whole batch.
        microbatches: into how many parts; 1 for a batch that stays whole.
        loss: see `by_loop.trained`.
    """
    batch, outputs, grads = copy.deepcopy(batch), dict[str, torch.Tensor](), dict[str, Any]()
    for step in ("first", "second"):
        model.zero_grad()
        made = by_loop.trained(model, batch, microbatches, loss)
        outputs |= {f"{step} {name}": tensor for name, tensor in made.items()}
        grads = _grads(model)
        _shrink(model)
    made = by_loop.evaluated(model, batch, microbatches)
    outputs |= {f"evaluation {name}": tensor for name, tensor in made.items()}
    return Found(outputs, Result([], grads, _buffers(model)))


def distributed(model: nn.Module, batch: Inputs, devices: baechi.Cluster, loss: str, rows: int) -> Found:
    """The steps of a distributed model, which is plain again then.

    Args:
        model: it is trained.
        batch: a whole batch.
        devices: where it is distributed.
        loss: as in `plain`; `"function"` gives the model's call a target.
        rows: how many rows the batch has.
    """
    batch, outputs, grads = copy.deepcopy(batch), dict[str, torch.Tensor](), dict[str, Any]()
    target = {"target": torch.zeros(rows)} if loss == "function" else {}
    with devices:
        for step in ("first", "second"):
            model.train().zero_grad()
            seed()
            result = model(*batch.args, **batch.kwargs, **target)
            made = dict(named_tensors("result", result)) if loss == "none" else {"loss": result}
            if not made:  # what is not joined raises when it is read
                result.sum()
            (by_loop.loss_of(made) if loss == "none" else result).backward()
            outputs |= {f"{step} {name}": tensor.detach().clone() for name, tensor in made.items()}
            grads = _grads(model)
            _shrink(model)
        model.eval()
        seed()
        with torch.no_grad():
            made = dict(named_tensors("result", model(*batch.args, **batch.kwargs)))
        outputs |= {f"evaluation {name}": tensor for name, tensor in made.items()}
    found = Found(outputs, Result([], grads, _buffers(model)))
    baechi.restore(model)
    return found


Steps = Callable[[nn.Module, Inputs], Found]
"""From a model that may be trained, and a batch, what is left behind."""


def judged(plainly: Steps, by_us: Steps, pristine: nn.Module, batch: Inputs) -> Verdict:
    """Whether a distributed model does what the plain one does.

    Outputs and buffers have to be equal bit for bit, gradients up to rounding; what is further apart runs
    again in double precision.

    Args:
        plainly: the steps of the plain model.
        by_us: the same of the distributed one.
        pristine: the model; copies of it are trained.
        batch: a whole batch.
    """
    try:
        expected = plainly(copy.deepcopy(pristine), batch)
    except Exception as error:  # others' code: whatever it raises, there is nothing to compare with
        return Verdict(Kind.PLAIN_FAILS, said(error))
    try:
        verdict = compared(expected, by_us(copy.deepcopy(pristine), batch), ROUNDING)
        if verdict.kind is not Kind.WRONG:
            return verdict
        again = compared(expected, plainly(copy.deepcopy(pristine), batch), ROUNDING)
        if again.kind is Kind.WRONG:
            return Verdict(Kind.PLAIN_FAILS, f"the plain model differs from itself: {again.note}")
        return _in_double(plainly, by_us, pristine, batch, verdict)
    except Exception as error:
        return raised(error)


def judged_in_double(plainly: Steps, by_us: Steps, pristine: nn.Module, batch: Inputs) -> Verdict:
    """The same where outputs, too, are sums in another order: everything up to rounding, in double precision.

    Args:
        plainly, by_us, pristine, batch: see `judged`.
    """
    exact, (args, kwargs) = copy.deepcopy(pristine).double(), doubled((batch.args, batch.kwargs))
    doubles = Inputs(*args, **kwargs)
    try:
        expected = plainly(copy.deepcopy(exact), doubles)
    except Exception as error:  # others' code: whatever it raises, there is nothing to compare with
        return Verdict(Kind.PLAIN_FAILS, said(error))
    try:
        found = by_us(copy.deepcopy(exact), doubles)
    except Exception as error:
        return raised(error)
    return compared_by_rounding(expected, found, ROUNDING_DOUBLE)


def compared_by_rounding(expected: Found, found: Found, rounding: float) -> Verdict:
    """Compare what is left behind, outputs up to rounding, too.

    Args:
        expected, found, rounding: see `compared`.
    """
    missing = [name for name in expected.outputs if name not in found.outputs]
    rest = {name: tensor for name, tensor in expected.outputs.items() if name in found.outputs}
    verdict = compared(
        _outputs_as_gradients(Found(rest, expected.rest)), _outputs_as_gradients(found), rounding
    )
    if missing and verdict.kind in (Kind.SAME, Kind.ROUNDING):
        return Verdict(verdict.kind, f"not joined: {', '.join(missing[:4])}")
    return verdict


def _outputs_as_gradients(found: Found) -> Found:
    outputs = {name: tensor for name, tensor in found.outputs.items() if tensor.is_floating_point()}
    rest = {name: tensor for name, tensor in found.outputs.items() if name not in outputs}
    grads = {**found.rest.grads, **outputs}
    return Found(rest or {"nothing": torch.zeros(())}, Result([], grads, found.rest.buffers))


def _in_double(plainly: Steps, by_us: Steps, pristine: nn.Module, batch: Inputs, verdict: Verdict) -> Verdict:
    if not verdict.note.startswith("gradient"):
        return verdict
    exact, (args, kwargs) = copy.deepcopy(pristine).double(), doubled((batch.args, batch.kwargs))
    doubles = Inputs(*args, **kwargs)
    try:
        expected = plainly(copy.deepcopy(exact), doubles)
    except Exception as error:
        return Verdict(
            Kind.WRONG, f"{verdict.note}; in double precision the plain model raises {said(error)}"
        )
    exactly = compared(expected, by_us(copy.deepcopy(exact), doubles), ROUNDING_DOUBLE)
    if exactly.kind is Kind.WRONG:
        return Verdict(Kind.WRONG, f"{verdict.note}; in double precision: {exactly.note}")
    return Verdict(Kind.ROUNDING, f"{verdict.note}; the same in double precision")


def compared(expected: Found, found: Found, rounding: float) -> Verdict:
    """Compare what is left behind; outputs that were not joined are named.

    Args:
        expected: of the plain model.
        found: of the distributed one.
        rounding: how far gradients may be apart, relative to the largest.
    """
    both = [name for name in expected.outputs if name in found.outputs]
    if not both:
        return Verdict(Kind.WRONG, "no output was joined")
    one, other = (
        Result([which.outputs[name] for name in both], which.rest.grads, which.rest.buffers)
        for which in (expected, found)
    )
    verdict = compare(one, other, rounding)
    for index, name in enumerate(both):
        if verdict.note.startswith(f"output {index} "):
            return Verdict(verdict.kind, verdict.note.replace(f"output {index} ", f"output {name} ", 1))
    missing = [name for name in expected.outputs if name not in found.outputs]
    if missing and verdict.kind in (Kind.SAME, Kind.ROUNDING):
        return Verdict(verdict.kind, f"not joined: {', '.join(missing[:4])}")
    return verdict


def _shrink(model: nn.Module) -> None:
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(_SHRINK)


def _grads(model: nn.Module) -> dict[str, torch.Tensor | None]:
    return {name: None if p.grad is None else _whole(p.grad) for name, p in model.named_parameters()}


def _buffers(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: dense(buffer) for name, buffer in model.named_buffers()}


def _whole(grad: torch.Tensor) -> torch.Tensor:
    """A gradient as a plain tensor; one in shards as a whole."""
    return dense(grad.cpu() if isinstance(grad, ShardedWeight) else grad)
