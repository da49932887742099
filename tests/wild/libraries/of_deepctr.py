"""deepctr-torch: click-through rates. Many small embeddings read columns of one matrix."""

import functools
from typing import Any

import torch
from deepctr_torch import models
from deepctr_torch.inputs import DenseFeat, SparseFeat, VarLenSparseFeat
from deepctr_torch.models import multitask
from torch import nn

from wild.specimen import Batch, Specimen

_ROWS, _SPARSE, _DENSE, _VOCABULARY = 8, 6, 2, 10
_COLUMNS: list[Any] = [
    *(SparseFeat(f"c{i}", _VOCABULARY, embedding_dim=4) for i in range(_SPARSE)),
    *(DenseFeat(f"d{i}", 1) for i in range(_DENSE)),
]
_HISTORY: list[Any] = [
    SparseFeat("user", _VOCABULARY, embedding_dim=4),
    SparseFeat("item", _VOCABULARY, embedding_dim=4, embedding_name="item"),
    DenseFeat("score", 1),
    VarLenSparseFeat(
        SparseFeat("hist_item", _VOCABULARY, embedding_dim=4, embedding_name="item"), 4, length_name="length"
    ),
]

_SMALL = {"dnn_hidden_units": (16, 8)}
_TOWERS = {"tower_dnn_hidden_units": (8,)}
_TWO: dict[str, dict[str, Any]] = {
    **{"WDL": _SMALL, "DeepFM": _SMALL, "DCN": _SMALL, "DCNMix": {**_SMALL, "low_rank": 4}},
    "xDeepFM": {**_SMALL, "cin_layer_size": (8, 4)},
    **{"AutoInt": _SMALL, "NFM": _SMALL, "FiBiNET": _SMALL, "ONN": _SMALL},
    **{"IFM": _SMALL, "DIFM": _SMALL, "AFN": {"ltl_hidden_size": 8, "afn_dnn_hidden_units": (8,)}},
}
_ONE: dict[str, dict[str, Any]] = {"PNN": {**_SMALL, "use_outter": True}, "MLR": {}}
_TASKS: dict[str, dict[str, Any]] = {
    "MMOE": {**_TOWERS, "expert_dnn_hidden_units": (8,), "gate_dnn_hidden_units": (8,)},
    "ESMM": _TOWERS,
    "PLE": {**_TOWERS, "expert_dnn_hidden_units": (8,), "gate_dnn_hidden_units": (8,)},
    "SharedBottom": {**_TOWERS, "bottom_dnn_hidden_units": (8,)},
}


def _matrix() -> Batch:
    return (
        torch.cat([torch.randint(0, _VOCABULARY, (_ROWS, _SPARSE)), torch.rand(_ROWS, _DENSE)], 1).float(),
    )


def _with_history() -> Batch:
    ids = torch.randint(1, _VOCABULARY, (_ROWS, 2))
    history, lengths = torch.randint(1, _VOCABULARY, (_ROWS, 4)), torch.randint(1, 5, (_ROWS, 1))
    return (torch.cat([ids, torch.rand(_ROWS, 1), history, lengths], 1).float(),)


def _din() -> nn.Module:
    return models.DIN(_HISTORY, ["item"], dnn_hidden_units=(16, 8), att_hidden_size=(8, 4), init_std=0.1)


def _dien() -> nn.Module:
    return models.DIEN(
        _HISTORY, ["item"], "AUGRU", dnn_hidden_units=(16,), att_hidden_units=(8,), init_std=0.1
    )


def specimens() -> list[Specimen]:
    """Models of one task and of two, and two that read a history."""
    built: dict[str, Any] = {}
    for name, more in _TWO.items():
        built[name] = functools.partial(getattr(models, name), _COLUMNS, _COLUMNS, init_std=0.1, **more)
    for name, more in {"AFM": {}, "CCPM": _SMALL}.items():
        embedded = _COLUMNS[:_SPARSE]
        built[name] = functools.partial(getattr(models, name), _COLUMNS, embedded, init_std=0.1, **more)
    for name, more in _ONE.items():
        built[name] = functools.partial(getattr(models, name), _COLUMNS, init_std=0.1, **more)
    for name, more in _TASKS.items():
        built[name] = functools.partial(getattr(multitask, name), _COLUMNS, init_std=0.1, **more)
    found = [Specimen("deepctr-torch", name, build, _matrix) for name, build in built.items()]
    histories = {"DIN": _din, "DIEN": _dien}
    return [*found, *(Specimen("deepctr-torch", n, b, _with_history) for n, b in histories.items())]
