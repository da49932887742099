"""The rules that may say what the losses of microbatches count, from what occurs in a batch.

    labels  3 1 255 255 │ 2 0 1 3     labels other than 255? other than 0, 1, 3? the rows? ...

A label that does not occur cannot be ignored in a batch, so it is a candidate when it first occurs; so is NaN
among targets. Not all labels are, since a vocabulary has many: what is ignored is common, frequent, or beyond
all other labels.
"""

from collections.abc import Collection, Sequence

import torch

from baechi.run.pipeline.batch.partition import Parted
from baechi.run.pipeline.batch.shares import (
    ROWS,
    SUM,
    Rule,
    by_amounts,
    by_labels,
    by_numbers,
    differ,
    shares_by,
    tensors_of,
)

_DEFAULT = -100
"""The label that torch's losses leave out unless told otherwise: likelier than that none is."""

_COMMON = (_DEFAULT, 0, -1)
"""Labels that models use for what counts nothing."""

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)

_FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)

_SAMPLE, _FREQUENT = 4096, 20
"""Of so many labels, a value that is one of so many is frequent."""

_NOTABLE = 1e-2
"""A label which, left out, changes shares by a smaller part is not asked about."""


def is_usual(rule: Rule) -> bool:
    """Whether a rule is one that models are known to follow; else it leaves out what merely occurs often."""
    return rule.ignored is None or rule.ignored in _COMMON


def rules_for(parts: Parted, without: Collection[Rule] = ()) -> list[Rule]:
    """The rules that may hold for a batch, the likeliest first."""
    named = _split_tensors(parts)
    labels = [name for name, each in named.items() if each[0].dtype in _INTEGERS]
    labels.sort(key=lambda name: ("label" not in name, "target" not in name))
    default, others = list[Rule](), list[Rule]()
    for name in labels:
        asked = [one.ignored for one in without if one.reads == name and one.ignored is not None]
        for value in _candidates(named[name], asked):
            rules = [by_labels(name, value, skipped) for skipped in _skipped(named[name])]
            (default if value == _DEFAULT else others).extend(one for one in rules if one not in without)
    floats = {name: each for name, each in named.items() if each[0].dtype in _FLOATS}
    numbers = [
        by_numbers(name)
        for name, each in floats.items()
        if by_numbers(name) not in without and _has_unknown(each)
    ]
    unknown = [one.reads for one in numbers]
    amounts = [
        by_amounts(name, skipped)
        for name, each in floats.items()
        if name not in unknown
        for skipped in _skipped(each)
    ]
    return [rule for rule in (*default, ROWS, *numbers, *others, *amounts, SUM) if rule not in without]


def notable(rules: Sequence[Rule], parts: Parted) -> list[Rule]:
    """The rules that are asked about: without labels that, left out, hardly change what the parts count."""
    (by_rows,) = shares_by([ROWS], parts)
    return [
        rule
        for rule, shares in zip(rules, shares_by(rules, parts), strict=True)
        if rule.ignored in (None, _DEFAULT) or differ(shares, by_rows, _NOTABLE)
    ]


def _has_unknown(each: Sequence[torch.Tensor]) -> bool:
    """Whether an entry is NaN."""
    return bool(torch.stack([one.isnan().any() for one in each]).any())


def _split_tensors(parts: Parted) -> dict[str, list[torch.Tensor]]:
    """By name, what each part has of the tensors that are split along a dimension."""
    each = [tensors_of(part) for part in parts.parts]
    return {
        name: [one[name] for one in each]
        for name, tensor in each[0].items()
        if _is_plain(tensor)
        and id(tensor) not in parts.items
        and not any(one.get(name, tensor) is tensor for one in each[1:])
    }


def _is_plain(tensor: torch.Tensor) -> bool:
    return tensor.dim() > 0 and tensor.layout is torch.strided and not tensor.is_nested


def _skipped(each: Sequence[torch.Tensor]) -> tuple[int, ...]:
    return (0, 1) if each[0].dim() > 1 else (0,)


def _candidates(each: Sequence[torch.Tensor], asked: Sequence[int]) -> list[int]:
    """Labels that may be ignored: what is common, frequent, or beyond all labels that were asked about."""
    each = [one for one in each if one.numel()]
    if not each:
        return []
    count = sum(one.numel() for one in each)
    step = 1 + count // _SAMPLE
    sample = torch.cat([one.reshape(-1)[::step].to("cpu", torch.int64) for one in each])
    values, counts = sample.unique(return_counts=True)
    frequent = values[counts * _FREQUENT >= len(sample)].tolist()
    least, most = min(int(one.min()) for one in each), max(int(one.max()) for one in each)
    if least == most:  # were it ignored, there would be no loss
        return []
    common = [value for value in _COMMON if least <= value <= most]
    beyond = [one for one in (least, most) if not asked or not min(asked) <= one <= max(asked)]
    return list(dict.fromkeys([*common, *beyond, *frequent]))
