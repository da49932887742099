"""Whether a step in microbatches has the gradients of the whole batch on the plain model."""

import copy
import io
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

import baechi
from baechi.errors import BaechiError
from baechi.records.inputs import Inputs
from baechi.run.pipeline.batch.join import AbstractJoiner, Unjoined, joined
from baechi.run.pipeline.batch.judge import Case as Judged
from baechi.run.pipeline.batch.judge import Judge, Verdict
from baechi.run.pipeline.batch.look import Looker
from baechi.run.pipeline.batch.partition import parted
from baechi.torchlib.tensors.pytree import named_tensors

from .draw import Case, batch, built

TOLERANCES = {"float64": 1e-7, "float32": 2e-3, "bfloat16": 0.1}
"""By how much gradients may be off, as a part of the largest norm of one."""

REFUSED = "refused"


def loss_of(result: Any) -> Tensor:
    """The loss that a model returned, or what its caller makes of its outputs."""
    if isinstance(result, dict) and "loss" in result:
        return result["loss"].sum()
    if isinstance(result, tuple):
        return result[0].sum()
    if isinstance(result, Tensor) and result.numel() == 1:
        return result.sum()
    for value in result.values() if isinstance(result, dict) else (result,):
        if not isinstance(value, (Tensor, tuple, list, int)):
            value * 1  # reading what is not joined raises
    chance, total = torch.Generator().manual_seed(0), torch.zeros((), dtype=torch.float64)
    for name, tensor in named_tensors("", result):
        if tensor.is_floating_point() and tensor.requires_grad and not name.startswith(".rows"):
            weight = torch.rand(tensor.shape, generator=chance).to(tensor.dtype)
            total = total + (tensor * weight).double().mean() + tensor.double().pow(3).mean()
    return total


def numbers(result: Any) -> Iterator[tuple[str, Any]]:
    """What was returned besides, by name; what is not joined is left out."""
    items = (
        result.items() if isinstance(result, dict) else enumerate(result) if isinstance(result, tuple) else ()
    )
    for name, value in items:
        if isinstance(value, (int, Tensor)):
            yield str(name), value


@contextmanager
def said() -> Iterator[io.StringIO]:
    """What is logged of the batch."""
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    logger = logging.getLogger("baechi.run.pipeline")
    logger.addHandler(handler)
    before, logger.propagate = logger.propagate, False
    try:
        yield text
    finally:
        logger.removeHandler(handler)
        logger.propagate = before


@cache
def planned(dtype: str, time_first: bool, rows: int, microbatches: int) -> tuple[Any, Any]:
    """A cluster and a pipeline for models of a kind."""
    case = Case(
        0, "as made", False, rows, microbatches, dtype, "normal", "", (), "bare", (), 1, 1, 0, time_first
    )
    cluster = baechi.Cluster.virtual(2)
    graph = baechi.profile(
        built(case), batch(case), cluster=cluster, microbatches=microbatches, source="estimate"
    )
    return cluster, baechi.pipeline(baechi.place(graph, cluster, "even"), microbatches)


def outcome(case: Case, steps: int = 1) -> str:
    """`"equal"`, `"refused: ..."`, `"said: ..."`, `"drawn"`; what is wrong in silence is `"SILENT: ..."`.

    Args:
        case: the case.
        steps: how many.
    """
    model = built(case)
    plain = copy.deepcopy(model)
    cluster, pipeline = planned(case.dtype, case.time_first, case.rows, case.microbatches)
    with warnings.catch_warnings(), said() as text:
        warnings.simplefilter("ignore")
        try:
            baechi.distribute(model, plan=pipeline)
            for step in range(steps):
                given = batch(case, step)
                for network in (model, plain):
                    network.zero_grad()
                expected = plain(*[one.clone() for one in given])
                loss_of(expected).backward()
                with cluster:
                    found = model(*[one.clone() for one in given])
                    loss_of(found).backward()
                wrong = "" if case.draws else _wrong(case, found, expected, model, plain)
                if wrong:
                    break
        except BaechiError as error:
            return f"{REFUSED}: {type(error).__name__}: {error}"
    if wrong:
        return f"said: {text.getvalue()}" if text.getvalue() else f"SILENT: {wrong}"
    return ("drawn: " if case.draws else "equal: ") + text.getvalue()


class _Joined(AbstractJoiner):
    """Joins outputs of parts by a verdict, with their history."""

    def __init__(self, verdict: Verdict, rows: Sequence[int]) -> None:
        self._verdict, self._rows, self.apart = verdict, rows, verdict.found.apart

    def join(self, tensors: Sequence[Tensor], name: str) -> Any:
        if self._verdict.is_number(name, tensors):
            shares = self._verdict.shares_of(name)
            if shares is None:
                return Unjoined(name, "number")
            pairs = zip(tensors, shares, strict=True)
            return sum(one * share for one, share in pairs if share)
        dim = self._verdict.found.dims.get(name)
        return Unjoined(name, "tensor") if dim is None else torch.cat(list(tensors), dim)

    def in_rows(self, lists: Sequence[list[Any]], name: str) -> Any:
        rows = self._verdict.found.dims.get(name) == 0
        return [item for each in lists for item in each] if rows else None


def without_lanes(case: Case, steps: int = 1) -> str:
    """The same as `outcome`, of the judge alone: a loop over parts takes the place of the pipeline.

    Args:
        case: the case.
        steps: how many.
    """
    model = built(case)
    plain = copy.deepcopy(model)
    judge, wrong = Judge(), ""
    with warnings.catch_warnings(), said() as text:
        warnings.simplefilter("ignore")
        try:
            for step in range(steps):
                given = Inputs(*batch(case, step))
                for network in (model, plain):
                    network.zero_grad()
                expected = plain(*given.args)
                loss_of(expected).backward()
                parts = parted(model, given, case.microbatches, {})
                looker = Looker(model, lambda inputs: model(*inputs.args), None)
                verdict = judge.verdict(Judged(looker, given, parts, {}))
                found = joined([model(*part.args) for part in parts.parts], _Joined(verdict, parts.rows))
                loss_of(found).backward()
                wrong = "" if case.draws else _wrong(case, found, expected, model, plain)
                if wrong:
                    break
        except BaechiError as error:
            return f"{REFUSED}: {type(error).__name__}: {error}"
    if wrong:
        return f"said: {text.getvalue()}" if text.getvalue() else f"SILENT: {wrong}"
    return ("drawn: " if case.draws else "equal: ") + text.getvalue()


def _wrong(case: Case, found: Any, expected: Any, model: nn.Module, plain: nn.Module) -> str:
    tolerance = TOLERANCES[case.dtype]
    off = difference(gradients(model), gradients(plain))
    if off > tolerance:
        return f"gradients are off by {off:.3g}"
    theirs = dict(numbers(expected))
    for name, value in numbers(found):
        other = theirs[name]
        if isinstance(value, int) or isinstance(other, int):
            if value != other:
                return f"{name} is {value} for {other}"
        elif value.shape != other.shape:
            return f"{name} has shape {tuple(value.shape)} for {tuple(other.shape)}"
        elif not torch.allclose(value.double(), other.double(), rtol=tolerance, atol=tolerance):
            return f"{name} is {value} for {other}"
    return ""


def gradients(model: nn.Module) -> list[Tensor]:
    """Those of a model, zeros where there are none."""
    given = [torch.zeros_like(one) if one.grad is None else one.grad for one in model.parameters()]
    return [one.detach().double() for one in given]


def difference(some: Sequence[Tensor], others: Sequence[Tensor]) -> float:
    """By how much gradients are off, the worst of all weights; weights that hardly get any count less."""
    largest = max([float(one.norm()) for one in others], default=0.0)
    if largest == 0:
        return 0.0
    pairs = zip(some, others, strict=True)
    return max(float((a - b).norm()) / max(float(b.norm()), 0.02 * largest) for a, b in pairs)


def is_right_by_a_rule(case: Case) -> bool:
    """Whether a loop over parts has the gradients of the whole by a usual rule: it must not be refused."""
    plain, given = built(case), batch(case)
    loss_of(plain(*given)).backward()
    expected = gradients(plain)
    parts = parted(plain, Inputs(*given), case.microbatches, {})
    rows = torch.tensor([float(one) for one in parts.rows])
    kept = torch.tensor([float((part.args[1] >= 0).sum()) for part in parts.parts])
    masks = torch.tensor([float(part.args[3].sum()) for part in parts.parts])
    for shares in (rows / rows.sum(), torch.ones(len(rows)), kept / kept.sum(), masks / masks.sum()):
        plain.zero_grad()
        for part, share in zip(parts.parts, shares.tolist(), strict=True):
            if share:
                (loss_of(plain(*part.args)) * share).backward()
        if difference(gradients(plain), expected) < TOLERANCES[case.dtype]:
            return True
    return False
