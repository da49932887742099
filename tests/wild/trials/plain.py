"""One model tried in all ways."""

import copy
import time
from collections.abc import Iterator
from contextlib import nullcontext

import torch
from architectures import loss_of
from run.pipeline.by_loop import doubled
from same import Result
from torch import nn

import baechi
from baechi.torchlib.tensors.pytree import tensors_in
from wild.specimen import Batch, Specimen
from wild.trials.common import Record, Report, built, dense, inputs_of, raised, said, seed
from wild.trials.ways import WAYS, Way, cluster
from wild.verdict import ROUNDING, ROUNDING_DOUBLE, Kind, Verdict, compare


def attempt(specimen: Specimen, version: str, report: Report) -> Record:
    """Try a model in training and in evaluation, in all ways.

    Args:
        specimen: the model.
        version: its library's version.
        report: is told what is about to be done.

    Returns:
        All verdicts.
    """
    record, start_s = Record(specimen.package, specimen.name, version), time.perf_counter()
    made = built(specimen, record, report)
    if made is None:
        return record
    pristine, batch = made
    for training in (True, False):
        mode = "training" if training else "evaluation"
        for way, verdict in _in_mode(pristine, batch, training, record, report):
            record.verdicts[f"{mode} {way}"] = (verdict.kind, verdict.note)
    record.total_s = round(time.perf_counter() - start_s, 2)
    return record


def _in_mode(
    pristine: nn.Module, batch: Batch, training: bool, record: Record, report: Report
) -> Iterator[tuple[str, Verdict]]:
    mode, devices = "training" if training else "evaluation", cluster()
    report(f"plain, {mode}")
    start_s = time.perf_counter()
    try:
        expected = step(copy.deepcopy(pristine), copy.deepcopy(batch), training)
    except Exception as error:  # others' code: whatever it raises, there is nothing to compare with
        yield "plain", Verdict(Kind.PLAIN_FAILS, said(error))
        return
    record.plain_s += round(time.perf_counter() - start_s, 3)
    report(f"capture, {mode}")
    start_s = time.perf_counter()
    try:
        seed()
        graph = baechi.profile(
            copy.deepcopy(pristine), inputs_of(copy.deepcopy(batch)), cluster=devices, training=training
        )
    except Exception as error:
        yield "capture", raised(error)
        return
    record.capture_s += round(time.perf_counter() - start_s, 3)
    record.layers = len(list(graph.placed()))
    plans: dict[str, baechi.Plan] = {}
    for way in WAYS:
        report(f"{way}, {mode}")
        try:
            if way.placer not in plans:
                plans[way.placer] = baechi.place(graph, devices, way.placer, effort=0)
            yield str(way), _by(way, plans[way.placer], pristine, batch, expected, training)
        except Exception as error:
            yield str(way), raised(error)


def _by(
    way: Way, plan: baechi.Plan, pristine: nn.Module, batch: Batch, expected: Result, training: bool
) -> Verdict:
    verdict = compare(expected, _distributed(way, plan, pristine, batch, training), ROUNDING)
    if verdict.kind is not Kind.WRONG:
        return verdict
    again = compare(expected, step(copy.deepcopy(pristine), copy.deepcopy(batch), training), ROUNDING)
    if again.kind is Kind.WRONG:
        return Verdict(Kind.PLAIN_FAILS, f"two plain steps differ: {again.note}")
    if not verdict.note.startswith("gradient"):
        return verdict
    return _in_double(way, plan, pristine, batch, verdict)


def _in_double(way: Way, plan: baechi.Plan, pristine: nn.Module, batch: Batch, verdict: Verdict) -> Verdict:
    """Whether what is apart in single precision is the same in double precision."""
    exact, doubles = copy.deepcopy(pristine).double(), doubled(batch)
    try:
        expected = step(copy.deepcopy(exact), copy.deepcopy(doubles), training=True)
    except Exception as error:
        return Verdict(
            Kind.WRONG, f"{verdict.note}; in double precision the plain model raises {said(error)}"
        )
    found = _distributed(way, plan, exact, doubles, training=True)
    exactly = compare(expected, found, ROUNDING_DOUBLE)
    if exactly.kind is Kind.WRONG:
        return Verdict(Kind.WRONG, f"{verdict.note}; in double precision: {exactly.note}")
    return Verdict(Kind.ROUNDING, f"{verdict.note}; the same in double precision")


def _distributed(way: Way, plan: baechi.Plan, pristine: nn.Module, batch: Batch, training: bool) -> Result:
    model = baechi.assign(copy.deepcopy(pristine).train(training), plan, reorder=way.reorder)
    result = step(model, copy.deepcopy(batch), training, plan.cluster)
    baechi.restore(model)
    return result


def step(model: nn.Module, batch: Batch, training: bool, devices: baechi.Cluster | None = None) -> Result:
    """One seeded step: forward and backward in training, forward without gradients in evaluation."""
    seed()
    model.train(training)
    inputs = inputs_of(batch)
    with devices or nullcontext(), torch.set_grad_enabled(training):
        outputs = model(*inputs.args, **inputs.kwargs)
        if training:
            loss_of(outputs).backward()
    return Result(
        [tensor.detach().clone() for tensor in tensors_in(outputs)],
        {name: None if p.grad is None else dense(p.grad) for name, p in model.named_parameters()},
        {name: dense(buffer) for name, buffer in model.named_buffers()},
    )
