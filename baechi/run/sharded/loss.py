"""Cross entropy of sharded logits: each device holds its words, and sends a few numbers a row.

    device k    largest[k] ──▶ largest of all ──▶ sum of exp(logits[k] - largest), and the label's logit
    one device  loss of a row = log(all sums) - (logit of the label - largest)

As in Megatron-LM's vocabulary-parallel cross entropy (Shoeybi et al. 2019, section 3).
"""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from baechi.run.sharded.output import ShardedOutput, note_use
from baechi.torchlib.private.modes import without_subclass_function

_SIGNATURE = inspect.signature(functional.cross_entropy)
_NARROW = (torch.float16, torch.bfloat16)
Run = Callable[..., Any]


class _Rows(NamedTuple):
    """By row, less the largest logit: log of the sum of exponentials, label's logit, mean of logits."""

    log_sum: torch.Tensor
    chosen: torch.Tensor
    mean: torch.Tensor | None


def cross_entropy(run: Run, args: Any, kwargs: dict[str, Any]) -> Any:
    """What `torch.nn.functional.cross_entropy` returns."""
    given = _SIGNATURE.bind(*args, **kwargs)
    given.apply_defaults()
    asked = given.arguments
    logits, target = asked["input"], asked["target"]
    if (
        not isinstance(logits, ShardedOutput)
        or isinstance(target, ShardedOutput)
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
    if rows.mean is not None:
        even = run(torch.sub, rows.log_sum, rows.mean)
        loss = run(torch.add, run(torch.mul, loss, 1 - smoothing), run(torch.mul, even, smoothing))
    loss = run(torch.where, counts, loss, 0.0)
    if asked["reduction"] != "none":
        loss = run(torch.sum, loss)
    if asked["reduction"] == "mean":
        loss = run(torch.div, loss, run(torch.sum, counts))
    return _as_whole(run, logits, loss)


def _rows(
    run: Run, logits: ShardedOutput, target: torch.Tensor, counts: torch.Tensor, *, smooth: bool
) -> _Rows:
    axis, sizes = logits.axis, logits.sizes
    shards = [run(torch.Tensor.float, shard) if shard.dtype in _NARROW else shard for shard in logits.shards]
    tops = [run(torch.amax, run(torch.Tensor.detach, shard), axis) for shard in shards]
    top = run(torch.amax, run(torch.stack, tops), 0)
    spread, column = [], run(torch.Tensor.unsqueeze, top, axis)
    for shard in shards:
        powers = run(torch.exp, run(torch.sub, shard, column))
        spread.append(run(torch.sum, powers, axis))
    # the largest logit is never added: beside it a small loss would be rounded away
    log_sum = run(torch.log, _added(run, spread))
    chosen, start = [], 0
    for number, (shard, size) in enumerate(zip(shards, sizes, strict=True)):
        local, inside = run(torch.sub, target, start), counts
        # a label below 0, or beyond the last word, goes to the kernel of the first or last shard: it refuses
        if number > 0:
            inside = run(torch.logical_and, inside, run(torch.ge, local, 0))
        if number < len(sizes) - 1:
            inside = run(torch.logical_and, inside, run(torch.lt, local, size))
        index = run(torch.Tensor.unsqueeze, run(torch.where, inside, local, 0), axis)
        found = run(torch.Tensor.squeeze, run(torch.gather, shard, axis, index), axis)
        chosen.append(run(torch.where, inside, found, 0.0))
        start += size
    own = run(torch.sub, _added(run, chosen), top)
    if not smooth:
        return _Rows(log_sum, own, None)
    total = _added(run, [run(torch.sum, shard, axis) for shard in shards])
    return _Rows(log_sum, own, run(torch.sub, run(torch.div, total, sum(sizes)), top))


def _added(run: Run, values: list[torch.Tensor]) -> Any:
    total = values[0]
    for value in values[1:]:
        total = run(torch.add, total, value)
    return total


def _as_whole(run: Run, logits: ShardedOutput, loss: torch.Tensor) -> torch.Tensor:
    """The loss in the dtype in which torch returns it: that of the logits, but for autocast."""
    with without_subclass_function():
        dtype, device = logits.dtype, logits.device
    if dtype in _NARROW and not torch.is_autocast_enabled(device.type):
        made: torch.Tensor = run(torch.Tensor.to, loss, dtype)
        return made
    return loss
