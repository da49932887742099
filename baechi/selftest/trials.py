"""What a self test tries. The witness of numbers is a plain loop of torch on the host, without baechi."""

import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from baechi.errors import BatchCoupled
from baechi.progress import progress
from baechi.records.cluster import Cluster
from baechi.run import last_step, plan_of
from baechi.selftest.rows import Found, Row, Verdict
from baechi.selftest.subjects import Regression, Subject, subjects
from baechi.verbs.distribute import distribute
from baechi.verbs.profile import default_cluster

MODES = ("plain", "pipelined", "split", "compiled")
_STEPS = 2
_LIMITS = {torch.float64: 1e-9, torch.float32: 1e-4}
"""How far numbers may be off, by the precision that the devices have: sums are taken in another order."""

_SENT = (1, 2**10, 2**20)
_COPIES = 5
_LARGER, _SMALLER = (8, 1024, 4096), (4, 64, 64)
"""Blocks, width and rows of the model whose step is predicted: on devices, and emulated."""


def devices_here() -> Cluster:
    """What is tested unless said otherwise: all accelerators, of which a single one is split in two."""
    if torch.accelerator.is_available() and torch.accelerator.device_count() == 1:
        return Cluster.discover(split=2)
    return default_cluster()


def selftest(cluster: Cluster, *, quick: bool = False) -> Found:
    """Try ten models in four modes, all copies between devices, and a prediction."""
    dtype, rows = _precision(cluster), []
    for subject in list(subjects())[: 2 if quick else None]:
        with progress(f"self test: {subject.name}"):
            expected = _trained(subject.build(dtype), subject.batch(dtype), nullcontext())
            for mode in MODES:
                if mode != "pipelined" or subject.in_parts != "skipped":
                    rows.append(_numbers(subject, mode, cluster, expected))
    with progress("self test: copies and a prediction"):
        rows += [*_copies(cluster), *_predictions(cluster)]
    return Found(cluster, tuple(rows))


def _precision(cluster: Cluster) -> torch.dtype:
    """Double, where the devices have it."""
    try:
        with _working(cluster):
            torch.zeros(1, dtype=torch.float64).to(_torch_name(cluster.names[0]))
    except (RuntimeError, TypeError):
        return torch.float32
    return torch.float64


def _working(cluster: Cluster) -> AbstractContextManager[Any]:
    return cluster if cluster.emulated else nullcontext()


def _torch_name(name: str) -> str:
    return name.partition("/")[0]  # a part of a device lies on it


def _options(mode: str, subject: Subject) -> Mapping[str, Any]:
    """What `distribute` is given."""
    if mode == "pipelined":
        return {"microbatches": 2}
    if mode == "split":
        return {"split": {subject.split: 2}}
    # what makes code for a device may not be there; that regions are compiled is what is tried
    return {"compile": {"backend": "aot_eager"}} if mode == "compiled" else {}


def _numbers(subject: Subject, mode: str, cluster: Cluster, expected: list[torch.Tensor]) -> Row:
    dtype, refused = expected[0].dtype, mode == "pipelined" and subject.in_parts == "refused"
    model, batch = subject.build(dtype), subject.batch(dtype)
    try:
        distribute(
            model,
            batch,
            cluster=cluster,
            placer="round-robin",  # all devices are used, whatever is fastest
            optimizer="sgd",
            verbose=False,
            **_options(mode, subject),
        )
        found = _trained(model, batch, _working(cluster))
    except Exception as error:  # whatever a device's own code raises is a row of the report
        is_due = refused and isinstance(error, BatchCoupled)
        note = f"{type(error).__name__}: {error}"
        return Row(subject.name, mode, "refused" if is_due else "FAILED", note=note)
    difference, limit = _difference(found, expected), _LIMITS[dtype]
    verdict: Verdict = "right" if difference <= limit and not refused else "WRONG"
    return Row(subject.name, mode, verdict, difference, limit, "of the largest")


def _trained(model: nn.Module, batch: Any, working: AbstractContextManager[Any]) -> list[torch.Tensor]:
    """Losses, weights and buffers after two steps, on the host."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    with working:
        for _ in range(_STEPS):
            optimizer.zero_grad()
            loss = model(*batch)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach().cpu())
        return [*losses, *[tensor.detach().cpu() for tensor in model.state_dict().values()]]


def _difference(found: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    """The largest difference of any tensor, relative to its largest number."""
    worst = 0.0
    for one, other in zip(found, expected, strict=True):
        one, other = one.double(), other.double()
        if one.shape != other.shape or not bool(one.isfinite().all()):
            return float("inf")
        worst = max(worst, float((one - other).abs().max() / other.abs().max().clamp_min(1e-30)))
    return worst


def _copies(cluster: Cluster) -> Iterator[Row]:
    """Patterns that go from each device to each other one, and on to the host."""
    names = list(dict.fromkeys(map(_torch_name, cluster.names)))
    for source in names:
        for target in names:
            if source != target:
                yield _copied(cluster, source, target)


def _copied(cluster: Cluster, source: str, target: str) -> Row:
    what, taken_s = f"{source} > {target}", []
    try:
        with _working(cluster):
            for number in _SENT:
                sent = torch.arange(number, dtype=torch.int32) * 40_503  # no word is like its neighbours
                there = sent.to(source)
                for _ in range(_COPIES):
                    begun_s = _now_s(cluster)
                    arrived = there.to(target)
                    taken_s.append(_now_s(cluster) - begun_s)
                    if not torch.equal(arrived.cpu(), sent):
                        return Row(what, "copy", "WRONG")
    except RuntimeError as error:
        return Row(what, "copy", "FAILED", note=str(error))
    return Row(what, "copy", "right", 4 * _SENT[-1] / min(taken_s[-_COPIES:]), unit="bytes/s")


def _now_s(cluster: Cluster) -> float:
    """The time when all that was begun is done."""
    if cluster.emulated:
        cluster.emulation.synchronize()
        return float(cluster.emulation.now_s)
    torch.accelerator.synchronize()
    return time.perf_counter()


def _predictions(cluster: Cluster) -> Iterator[Row]:
    """The step of a chain of wide layers and the peak of each device, predicted and measured."""
    blocks, width, rows = _SMALLER if cluster.emulated else _LARGER
    layers = [nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(blocks)]
    model, x = Regression(nn.Sequential(*layers)), torch.ones(rows, width)
    try:
        distribute(model, (x, x), cluster=cluster, placer="round-robin", optimizer="adam", verbose=False)
        optimizer = torch.optim.Adam(model.parameters())
        with cluster:
            for _ in range(3):
                optimizer.zero_grad()
                model(x, x).backward()
                optimizer.step()
            measured = last_step(model)
    except Exception as error:  # as above
        yield Row("wide layers", "prediction", "FAILED", note=f"{type(error).__name__}: {error}")
        return
    predicted = plan_of(model).timeline
    yield Row("wide layers", "step", "told", measured.makespan_s, predicted.makespan_s, "s")
    for name, peak in measured.peak_bytes.items():
        yield Row("wide layers", f"peak of {name}", "told", peak, predicted.peak_bytes[name], "bytes")
