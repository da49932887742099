"""One model tried in all ways."""

import copy
import random
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from architectures import loss_of
from same import Result
from torch import nn
from torch.utils._pytree import tree_map

import baechi
from baechi.torchlib.tensors.pytree import tensors_in
from wild.specimen import Batch, Specimen
from wild.verdict import ROUNDING, ROUNDING_DOUBLE, Kind, Verdict, compare
from wild.ways import WAYS, Way, cluster

Report = Callable[[str], None]


@dataclass
class Record:
    """What came out for one model, as it is kept.

    Args:
        library: the package, see `Specimen`.
        name: see `Specimen`.
        version: the library's version.
        layers: how many layers the graph of the last capture has.
        plain_s: how long one plain step in training and one in evaluation take.
        capture_s: how long both captures take.
        total_s: how long the whole trial takes.
        verdicts: kind and note, by mode and way.
    """

    library: str
    name: str
    version: str
    layers: int = 0
    plain_s: float = 0.0
    capture_s: float = 0.0
    total_s: float = 0.0
    verdicts: dict[str, tuple[str, str]] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        return asdict(self)


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
    report("building")
    try:
        pristine = specimen.model()
        batch = specimen.batch()
    except Exception as error:
        record.verdicts["build"] = (Kind.PLAIN_FAILS, _said(error))
        return record
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
        yield "plain", Verdict(Kind.PLAIN_FAILS, _said(error))
        return
    record.plain_s += round(time.perf_counter() - start_s, 3)
    report(f"capture, {mode}")
    start_s = time.perf_counter()
    try:
        _seed()
        graph = baechi.profile(
            copy.deepcopy(pristine), _inputs(copy.deepcopy(batch)), cluster=devices, training=training
        )
    except Exception as error:
        yield "capture", _raised(error)
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
            yield str(way), _raised(error)


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
    exact, doubles = copy.deepcopy(pristine).double(), tree_map(_double, batch)
    try:
        expected = step(copy.deepcopy(exact), copy.deepcopy(doubles), training=True)
    except Exception as error:
        return Verdict(
            Kind.WRONG, f"{verdict.note}; in double precision the plain model raises {_said(error)}"
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
    _seed()
    model.train(training)
    inputs = _inputs(batch)
    with devices or nullcontext(), torch.set_grad_enabled(training):
        outputs = model(*inputs.args, **inputs.kwargs)
        if training:
            loss_of(outputs).backward()
    return Result(
        [tensor.detach().clone() for tensor in tensors_in(outputs)],
        {name: None if p.grad is None else _dense(p.grad) for name, p in model.named_parameters()},
        {name: _dense(buffer) for name, buffer in model.named_buffers()},
    )


def _seed() -> None:
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)


def _inputs(batch: Batch) -> baechi.Inputs:
    return baechi.Inputs(*batch) if isinstance(batch, tuple) else baechi.Inputs(**batch)


def _double(value: Any) -> Any:
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone() if tensor.layout == torch.strided else tensor.to_dense()


def _raised(error: Exception) -> Verdict:
    """An error raised on purpose is a refusal, but a race is what the library must keep from happening."""
    if isinstance(error, baechi.StreamRaceError):
        return Verdict(Kind.WRONG, _said(error))
    if isinstance(error, baechi.BaechiError):
        return Verdict(Kind.REFUSED, _said(error))
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return Verdict(
        Kind.ERROR, f"{_said(error)} ({frame.filename.split('/')[-1]}:{frame.lineno} {frame.name})"
    )


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
