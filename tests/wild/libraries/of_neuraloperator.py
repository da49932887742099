"""neuraloperator: convolutions in the frequency domain, with complex weights, some of them factorized."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from neuralop import models
from torch import nn

from wild.specimen import Batch, Specimen

_PLANE: dict[str, Any] = {"in_channels": 2, "out_channels": 1, "hidden_channels": 8, "n_layers": 2}
_UNO: dict[str, Any] = {
    **{"lifting_channels": 8, "projection_channels": 8, "uno_out_channels": [8, 8, 8]},
    **{"uno_n_modes": [[4, 4]] * 3, "uno_scalings": [[1.0, 1.0], [0.5, 0.5], [2.0, 2.0]]},
    **{"channel_mlp_skip": "linear", "horizontal_skips_map": None},
}


def _plane() -> Batch:
    return (torch.randn(4, 2, 8, 8),)


def _line() -> Batch:
    return (torch.randn(4, 2, 16),)


_ROWS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Batch]]] = {
    "FNO": (lambda: models.FNO(n_modes=(4, 4), **_PLANE), _plane),
    "FNO, line": (lambda: models.FNO(n_modes=(4,), **_PLANE), _line),
    "FNO, norm": (lambda: models.FNO(n_modes=(4, 4), norm="group_norm", **_PLANE), _plane),
    "FNO, padded": (
        lambda: models.FNO(n_modes=(4, 4), domain_padding=0.25, stabilizer="tanh", **_PLANE),
        _plane,
    ),
    "TFNO": (lambda: models.TFNO(n_modes=(4, 4), rank=0.5, **_PLANE), _plane),
    "FNO, CP": (lambda: models.FNO(n_modes=(4, 4), factorization="CP", rank=0.5, **_PLANE), _plane),
    "FNO, TT": (lambda: models.FNO(n_modes=(4, 4), factorization="TT", rank=0.5, **_PLANE), _plane),
    "UNO": (lambda: models.UNO(in_channels=2, out_channels=1, hidden_channels=8, n_layers=3, **_UNO), _plane),
    "CODANO": (
        lambda: models.CODANO(
            **{"n_layers": 2, "hidden_variable_codimension": 4, "lifting_channels": 4, "domain_padding": 0.0},
            **{"projection_channels": 4, "n_modes": [[4, 4]] * 2, "n_heads": [1, 1]},
            **{"per_layer_scaling_factors": [[1, 1]] * 2, "attention_scaling_factors": [1, 1]},
        ),
        _plane,
    ),
}


def specimens() -> list[Specimen]:
    """Operators of regular grids."""
    return [
        Specimen("neuraloperator", name, functools.partial(build), inputs)
        for name, (build, inputs) in _ROWS.items()
    ]
