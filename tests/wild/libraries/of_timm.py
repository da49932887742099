"""timm: the smallest model of each of its files, as far as names tell."""

import functools
from collections.abc import Iterator

import timm
import torch
from timm.models import list_models, list_modules
from torch import nn

from wild.specimen import Choice, Specimen, first_that_runs

_SMALL = (
    *("test_", "atto", "femto", "pico", "nano", "xxs", "xxtiny", "mini", "tiny"),
    *("xs", "_s0", "_b0", "_t0", "small", "18"),
)
"""What names of small models hold, the smallest first."""

_SIDES = (64, 96, 128, 224, 256)
"""Images' sides to try: some models take no other than that of their weights."""


def specimens() -> list[Specimen]:
    """One of each file."""
    names = dict.fromkeys(_smallest(module) for module in list_modules())
    return [first_that_runs("timm", name, functools.partial(_choices, name)) for name in names]


def _smallest(module: str) -> str:
    return min(list_models(module=module), key=lambda name: (_rank(name), len(name), name))


def _rank(name: str) -> int:
    return next((rank for rank, part in enumerate(_SMALL) if part in name), len(_SMALL))


def _choices(name: str) -> Iterator[Choice]:
    for side in _SIDES:
        for sized in (True, False):
            yield functools.partial(_build, name, side if sized else None), functools.partial(_images, side)


def _build(name: str, side: int | None) -> nn.Module:
    sizes = {} if side is None else {"img_size": side}
    return timm.create_model(name, num_classes=5, **sizes)


def _images(side: int) -> tuple[torch.Tensor]:
    return (torch.randn(2, 3, side, side),)
