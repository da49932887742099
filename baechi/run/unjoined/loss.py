"""Cross entropy of logits in parts: each device holds its words, and sends a few numbers a row.

    device k    largest[k] ──▶ largest of all ──▶ sum of exp(logits[k] - largest), and the label's logit
    one device  loss of a row = largest + log(all sums) - logit of the label

As in Megatron-LM's vocabulary-parallel cross entropy (Shoeybi et al. 2019, section 3).
"""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from baechi.run.unjoined.value import Unjoined, note_use, sizes_of
from baechi.torchlib.private.modes import without_subclass_function

_SIGNATURE = inspect.signature(functional.cross_entropy)
_NARROW = (torch.float16, torch.bfloat16)
Run = Callable[..., Any]


class _Rows(NamedTuple):
    """By row: the log of the sum of exponentials, the label's logit, and the sum of all logits."""

    log_sum: torch.Tensor
    chosen: torch.Tensor
    total: torch.Tensor | None


def cross_entropy(run: Run, args: Any, kwargs: dict[str, Any]) -> Any:
    """What `torch.nn.functional.cross_entropy` returns.

    Args:
        run: runs a functional op in the open step.
        args: its positional arguments.
        kwargs: its keyword arguments.

    Returns:
        The loss; NotImplemented where the logits have to be joined: class weights, targets that are
        probabilities, another axis.
    """
    given = _SIGNATURE.bind(*args, **kwargs)
    given.apply_defaults()
    asked = given.arguments
    logits, target = asked["input"], asked["target"]
    if (
        not isinstance(logits, Unjoined)
        or isinstance(target, Unjoined)
        or not isinstance(target, torch.Tensor)
    ):
        return NotImplemented
    with without_subclass_function():
        words = not target.is_floating_point() and target.dim() == logits.dim() - 1
        at_axis = logits.axis == (1 if logits.dim() > 1 else 0)
        shapes_match = list(target.shape) == [*logits.shape[: logits.axis], *logits.shape[logits.axis + 1 :]]
    named = asked["reduction"] in ("mean", "sum", "none")
    unusual = asked["weight"] is not None or asked["reduce"] is not None or asked["size_average"] is not None
    if unusual or not (words and at_axis and shapes_match and named):
        return NotImplemented
    smoothing, ignored = asked["label_smoothing"], asked["ignore_index"]
    note_use(logits)
    counts = run(torch.ne, target, ignored)
    rows = _rows(run, logits, target, counts, smooth=bool(smoothing))
    loss = run(torch.sub, rows.log_sum, rows.chosen)
    if rows.total is not None:
        words_in_all = sum(sizes_of(logits))
        even = run(torch.sub, rows.log_sum, run(torch.div, rows.total, words_in_all))
        loss = run(torch.add, run(torch.mul, loss, 1 - smoothing), run(torch.mul, even, smoothing))
    loss = run(torch.where, counts, loss, 0.0)
    if asked["reduction"] != "none":
        loss = run(torch.sum, loss)
    if asked["reduction"] == "mean":
        loss = run(torch.div, loss, run(torch.sum, counts))
    return _as_whole(run, logits, loss)


def _rows(run: Run, logits: Unjoined, target: torch.Tensor, counts: torch.Tensor, *, smooth: bool) -> _Rows:
    axis, sizes = logits.axis, sizes_of(logits)
    parts = [run(torch.Tensor.float, part) if part.dtype in _NARROW else part for part in logits.parts]
    tops = [run(torch.amax, run(torch.Tensor.detach, part), axis) for part in parts]
    top = run(torch.amax, run(torch.stack, tops), 0)
    spread, column = [], run(torch.Tensor.unsqueeze, top, axis)
    for part in parts:
        powers = run(torch.exp, run(torch.sub, part, column))
        spread.append(run(torch.sum, powers, axis))
    log_sum = run(torch.add, run(torch.log, _added(run, spread)), top)
    chosen, start = [], 0
    for number, (part, size) in enumerate(zip(parts, sizes, strict=True)):
        first, last = number == 0, number == len(sizes) - 1
        chosen.append(
            _label_s(
                run, part, axis, run(torch.sub, target, start), counts, first=first, last=last, size=size
            )
        )
        start += size
    totals = [run(torch.sum, part, axis) for part in parts] if smooth else None
    return _Rows(log_sum, _added(run, chosen), None if totals is None else _added(run, totals))


def _label_s(
    run: Run,
    part: torch.Tensor,
    axis: int,
    local: torch.Tensor,
    counts: torch.Tensor,
    *,
    first: bool,
    last: bool,
    size: int,
) -> torch.Tensor:
    """The label's logit where it is in this part, else zero."""
    inside = counts
    # a label below 0, or beyond the last word, reaches the kernel of the first or last part, which refuses it
    if not first:
        inside = run(torch.logical_and, inside, run(torch.ge, local, 0))
    if not last:
        inside = run(torch.logical_and, inside, run(torch.lt, local, size))
    index = run(torch.Tensor.unsqueeze, run(torch.where, inside, local, 0), axis)
    found = run(torch.Tensor.squeeze, run(torch.gather, part, axis, index), axis)
    made: torch.Tensor = run(torch.where, inside, found, 0.0)
    return made


def _added(run: Run, values: list[torch.Tensor]) -> Any:
    total = values[0]
    for value in values[1:]:
        total = run(torch.add, total, value)
    return total


def _as_whole(run: Run, logits: Unjoined, loss: torch.Tensor) -> torch.Tensor:
    """The loss in the dtype in which torch returns it: that of the logits, but for autocast."""
    with without_subclass_function():
        dtype, device = logits.dtype, logits.device
    if dtype in _NARROW and not torch.is_autocast_enabled(device.type):
        made: torch.Tensor = run(torch.Tensor.to, loss, dtype)
        return made
    return loss
