"""One model by two placers and in microbatches, in double precision, beside the plain model."""

import copy
import time
from typing import Any

import torch
from run.pipeline.by_loop import doubled
from torch import nn

import baechi
from baechi.records.inputs import Inputs
from baechi.verbs.batches import batch_size
from wild.specimen import Specimen
from wild.trials import by_loop, two_steps
from wild.trials.common import Record, Report, built, inputs_of, raised, said, seed
from wild.trials.rows import with_rows
from wild.trials.ways import cluster
from wild.verdict import ROUNDING, ROUNDING_DOUBLE, Kind, Verdict

MICROBATCHES = 2
FEWEST_ROWS = 4
WAYS = (
    (1, "random:1", False),
    (1, "m-etf", False),
    (MICROBATCHES, "random:2", True),
    (MICROBATCHES, "auto", False),
)
"""Microbatches, who places, and whether the model's call has the loss."""

_STILL = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd)
"""Of these, parts of a batch compute something else than the whole, which is said."""


def attempt(specimen: Specimen, version: str, report: Report) -> Record:
    """Try a model in all ways: two steps in training, and an evaluation.

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
    report("plain")
    try:
        pristine, batch, rounding = _exact(*made)
    except Exception as error:  # others' code: whatever it raises, there is nothing to compare with
        record.verdicts["plain"] = (Kind.PLAIN_FAILS, said(error))
        return record
    for number, placer, with_loss in WAYS:
        name = f"{number} parts, {placer}, {'loss within' if with_loss else 'loss outside'}"
        report(name)
        verdict = _by(number, placer, with_loss, pristine, batch, rounding)
        record.verdicts[name] = (verdict.kind, verdict.note)
    record.total_s = round(time.perf_counter() - start_s, 2)
    return record


def _exact(model: nn.Module, batch: Any) -> tuple[nn.Module, Inputs, float]:
    """The model and its batch in double precision; in single if it does not run so."""
    inputs = inputs_of(batch)
    if (batch_size(inputs) or 0) < FEWEST_ROWS:
        inputs = with_rows(inputs, FEWEST_ROWS)
    exact, (args, kwargs) = copy.deepcopy(model), doubled((inputs.args, inputs.kwargs))
    exact._apply(lambda tensor: tensor.to(_DOUBLE.get(tensor.dtype, tensor.dtype)))
    doubles = Inputs(*args, **kwargs)
    try:
        two_steps.plain(copy.deepcopy(exact), doubles, 1, "none")
    except Exception:  # code of others that knows single precision only
        two_steps.plain(copy.deepcopy(model), inputs, 1, "none")
        return model, inputs, ROUNDING
    return exact, doubles, ROUNDING_DOUBLE


_DOUBLE = {torch.float32: torch.float64, torch.complex64: torch.complex128}


def _by(
    number: int, placer: str, with_loss: bool, pristine: nn.Module, batch: Inputs, rounding: float
) -> Verdict:
    loss, model = "none", copy.deepcopy(pristine)
    if with_loss:
        loss = "inside" if _returns_a_loss(pristine, batch) else "function"
    if number > 1:
        _keep_still(model)
    try:
        expected = two_steps.plain(copy.deepcopy(model), batch, 1, loss)
    except Exception as error:  # others' code: whatever it raises, there is nothing to compare with
        return Verdict(Kind.PLAIN_FAILS, said(error))
    if any(tensor.isnan().any() for tensor in expected.outputs.values()):
        return Verdict(Kind.PLAIN_FAILS, "it gives no numbers")
    try:
        found = _distributed(number, placer, loss, copy.deepcopy(model), batch)
    except Exception as error:
        return raised(error)
    verdict = two_steps.compared_by_rounding(expected, found, rounding)
    if verdict.kind is not Kind.WRONG:
        return verdict
    again = two_steps.compared_by_rounding(
        expected, two_steps.plain(copy.deepcopy(model), batch, 1, loss), rounding
    )
    if again.kind is Kind.WRONG:
        return Verdict(Kind.PLAIN_FAILS, f"the plain model differs from itself: {again.note}")
    if number == 1:
        return verdict
    # what draws random numbers for its rows draws others in parts: those of a loop over the parts
    loop = two_steps.plain(copy.deepcopy(model), batch, number, loss)
    parted = two_steps.compared_by_rounding(loop, found, rounding)
    if parted.kind is Kind.WRONG:
        return Verdict(Kind.WRONG, f"{verdict.note}; beside a loop over the parts: {parted.note}")
    return Verdict(Kind.ROUNDING, f"as a loop over the parts; of the whole batch: {verdict.note}")


def _distributed(number: int, placer: str, loss: str, model: nn.Module, batch: Inputs) -> two_steps.Found:
    devices, more = cluster(), {}
    seed()
    if number > 1:
        more = {"microbatches": number, "loss": by_loop.loss_beside if loss == "function" else None}
    baechi.distribute(
        model.train(), batch, cluster=devices, placer=placer, effort=0, source="estimate", **more
    )
    return two_steps.distributed(model, batch, devices, loss, batch_size(batch) or 0)


def _returns_a_loss(pristine: nn.Module, batch: Inputs) -> bool:
    result = copy.deepcopy(pristine).train()(*copy.deepcopy(batch.args), **copy.deepcopy(batch.kwargs))
    return isinstance(result, torch.Tensor) and result.dim() == 0


def _keep_still(model: nn.Module) -> None:
    """Let statistics of batches and dropouts stay off in training: parts have others than the whole batch."""
    for module in model.modules():
        if isinstance(module, _STILL):
            module.eval()
            module.train = _stays  # type: ignore[method-assign]


def _stays(mode: bool = True) -> None:
    """Change nothing."""
