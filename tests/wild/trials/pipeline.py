"""One model with its step in microbatches: two steps in training and an evaluation, beside the plain loop."""

import copy
import time
from dataclasses import dataclass
from typing import Any, Literal

import torch
from same import Result
from torch import nn

import baechi
from baechi.records.inputs import Inputs
from baechi.torchlib.tensors.pytree import named_tensors
from wild.specimen import Specimen
from wild.trials import by_loop
from wild.trials.common import Record, Report, built, dense, doubled, inputs_of, raised, said, seed
from wild.trials.rows import with_rows
from wild.trials.ways import cluster
from wild.verdict import ROUNDING, ROUNDING_DOUBLE, Kind, Verdict, compare

_SHRINK = 0.9
"""Weights are multiplied by it between the steps: as bitwise as no optimizer is, and what is stale shows."""


@dataclass(frozen=True)
class Way:
    """How the step is split, placed and ordered.

    Args:
        microbatches: into how many parts.
        rows: how many rows the batch has.
        devices: how many there are.
        placer: who places; `"cuts"` looks for equal loads, and orders.
        loss: returned by the model, made by a function of its outputs, or by the caller of the joined ones.
        order: of the tasks.
        apart: whether gradients of weights are tasks of their own.
    """

    microbatches: int
    rows: int
    devices: int
    placer: str
    loss: Literal["inside", "function", "none"]
    order: str
    apart: bool = False

    def __str__(self) -> str:
        apart = ", weights apart" * self.apart
        return (
            f"{self.rows} rows by {self.microbatches}, {self.placer}, loss {self.loss}, {self.order}{apart}"
        )


WAYS = (
    Way(2, 5, 3, "random:1", "inside", "1f1b"),
    Way(4, 4, 2, "cuts", "function", "auto"),
    Way(2, 4, 3, "random:2", "none", "interleaved"),
    Way(4, 4, 3, "random:3", "inside", "gpipe", apart=True),
)


def attempt(specimen: Specimen, version: str, report: Report) -> Record:
    """Try a model in microbatches, in all ways.

    Args:
        specimen: the model.
        version: its library's version.
        report: is told what is about to be done.

    Returns:
        All verdicts.
    """
    record, start_s = Record(specimen.package, specimen.name, version), time.perf_counter()
    made = built(specimen, record, report)
    if made is not None:
        for way in WAYS:
            report(str(way))
            verdict = _by(way, made[0], inputs_of(made[1]), record)
            record.verdicts[str(way)] = (verdict.kind, verdict.note)
    record.total_s = round(time.perf_counter() - start_s, 2)
    return record


def _by(way: Way, pristine: nn.Module, few: Inputs, record: Record) -> Verdict:
    try:
        batch = with_rows(few, way.rows)
        expected = _plain(way, pristine, batch)
    except Exception as error:  # others' code: whatever it raises, there is nothing to compare with
        return Verdict(Kind.PLAIN_FAILS, said(error))
    try:
        pipeline = _pipeline(way, pristine, batch)
        record.layers = len(list(pipeline.plan.graph.placed()))
        verdict = _compared(expected, _pipelined(way, pipeline, pristine, batch), ROUNDING)
        if verdict.kind is not Kind.WRONG:
            return verdict
        return _doubted(way, pristine, batch, expected, verdict)
    except Exception as error:
        return raised(error)


def _doubted(way: Way, pristine: nn.Module, batch: Inputs, expected: "Found", verdict: Verdict) -> Verdict:
    """Whether the plain loop itself gives this or that, or the same comes out in double precision."""
    again = _compared(expected, _plain(way, pristine, batch), ROUNDING)
    if again.kind is Kind.WRONG:
        return Verdict(Kind.PLAIN_FAILS, f"two plain loops differ: {again.note}")
    if not verdict.note.startswith("gradient"):
        return verdict
    exact, (args, kwargs) = copy.deepcopy(pristine).double(), doubled((batch.args, batch.kwargs))
    doubles = Inputs(*args, **kwargs)
    try:
        expected = _plain(way, exact, doubles)
    except Exception as error:
        return Verdict(
            Kind.WRONG, f"{verdict.note}; in double precision the plain model raises {said(error)}"
        )
    found = _pipelined(way, _pipeline(way, exact, doubles), exact, doubles)
    exactly = _compared(expected, found, ROUNDING_DOUBLE)
    if exactly.kind is Kind.WRONG:
        return Verdict(Kind.WRONG, f"{verdict.note}; in double precision: {exactly.note}")
    return Verdict(Kind.ROUNDING, f"{verdict.note}; the same in double precision")


@dataclass(frozen=True)
class Found:
    """What two steps and an evaluation leave behind: outputs by name, and gradients of the second step."""

    outputs: dict[str, torch.Tensor]
    rest: Result


def _compared(expected: Found, found: Found, rounding: float) -> Verdict:
    """Outputs that both have are equal bit for bit, and so are buffers; gradients up to rounding."""
    both = [name for name in expected.outputs if name in found.outputs]
    if not both:
        return Verdict(Kind.WRONG, "no output was joined")
    one, other = (
        Result([which.outputs[name] for name in both], which.rest.grads, which.rest.buffers)
        for which in (expected, found)
    )
    verdict = compare(one, other, rounding)
    for index, name in reversed(list(enumerate(both))):
        if verdict.note.startswith(f"output {index} "):
            verdict = Verdict(verdict.kind, verdict.note.replace(f"output {index}", f"output {name}"))
            break
    missing = [name for name in expected.outputs if name not in found.outputs]
    if missing and verdict.kind in (Kind.SAME, Kind.ROUNDING):
        return Verdict(verdict.kind, f"not joined: {', '.join(missing[:4])}")
    return verdict


def _plain(way: Way, pristine: nn.Module, batch: Inputs) -> Found:
    model, batch = _fresh(way, pristine), copy.deepcopy(batch)
    outputs = {}
    for step in ("first", "second"):
        model.zero_grad()
        made = by_loop.trained(model, batch, way.microbatches, way.loss)
        outputs |= {f"{step} {name}": tensor for name, tensor in made.items()}
        grads = _grads(model)
        _shrink(model)
    made = by_loop.evaluated(model, batch, way.microbatches)
    outputs |= {f"evaluation {name}": tensor for name, tensor in made.items()}
    return Found(outputs, Result([], grads, _buffers(model)))


def _pipeline(way: Way, pristine: nn.Module, batch: Inputs) -> baechi.Pipeline:
    seed()
    devices = cluster(way.devices)
    graph = baechi.profile(
        _fresh(way, pristine).train(),
        copy.deepcopy(batch),
        cluster=devices,
        training=True,
        source="estimate",
        microbatches=way.microbatches,
        weights_apart=way.apart,
    )
    if way.placer == "cuts":
        return baechi.place(graph, devices, microbatches=way.microbatches, effort=0)
    return baechi.pipeline(baechi.place(graph, devices, way.placer), way.microbatches, way.order)


def _pipelined(way: Way, pipeline: baechi.Pipeline, pristine: nn.Module, batch: Inputs) -> Found:
    model, batch = _fresh(way, pristine).train(), copy.deepcopy(batch)
    loss = (lambda result, target: by_loop.loss_of(result)) if way.loss == "function" else None
    baechi.distribute(model, plan=pipeline, loss=loss, loss_weights="rows" if way.loss == "inside" else None)
    target = {"target": torch.zeros(way.rows)} if way.loss == "function" else {}
    outputs = {}
    with pipeline.plan.cluster:
        for step in ("first", "second"):
            model.train().zero_grad()
            seed()
            result = model(*batch.args, **batch.kwargs, **target)
            found = _named(way, result)
            (by_loop.loss_of(found) if way.loss == "none" else found["loss"]).backward()
            outputs |= {f"{step} {name}": tensor.detach() for name, tensor in found.items()}
            grads = _grads(model)
            _shrink(model)
        model.eval()
        seed()
        with torch.no_grad():
            found = dict(named_tensors("result", model(*batch.args, **batch.kwargs)))
        outputs |= {f"evaluation {name}": tensor for name, tensor in found.items()}
    result = Found(outputs, Result([], grads, _buffers(model)))
    baechi.restore(model)
    return result


def _named(way: Way, result: Any) -> dict[str, torch.Tensor]:
    return dict(named_tensors("result", result)) if way.loss == "none" else {"loss": result}


def _fresh(way: Way, pristine: nn.Module) -> nn.Module:
    model = copy.deepcopy(pristine)
    return by_loop.WithLoss(model) if way.loss == "inside" else model


def _shrink(model: nn.Module) -> None:
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(_SHRINK)


def _grads(model: nn.Module) -> dict[str, torch.Tensor | None]:
    return {name: None if p.grad is None else dense(p.grad) for name, p in model.named_parameters()}


def _buffers(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: dense(buffer) for name, buffer in model.named_buffers()}
