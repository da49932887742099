"""What must be alike on all ranks before they plan; each part by itself, so that the message names it."""

import platform
import sys
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import Any

import torch
from torch import nn

from baechi.backend.ranks.wires import Wires
from baechi.errors import RankError
from baechi.records.inputs import Inputs
from baechi.run.weights.match import weights_of
from baechi.torchlib.tensors.pytree import tensors_in

Parts = Mapping[str, tuple[str, ...]]
"""By what it is, the lines that say it."""

_CURES = {
    "model": "build the same model on every rank",
    "version": "install the same versions everywhere",
    "random seed": "call torch.manual_seed with the same number on every rank before the model is built",
    "batch": "give every rank the same batch",
    "argument of distribute": "call it alike on every rank",
}


def fingerprint(model: nn.Module, inputs: list[Inputs], asked: Mapping[str, object]) -> Parts:
    """What this rank has."""
    return {
        "version": (
            f"baechi {sys.modules['baechi'].__version__}",
            f"torch {torch.__version__}",
            f"python {platform.python_version()}",
        ),
        "model": tuple(_model_lines(model)),
        "random seed": (str(torch.initial_seed()),),
        "batch": tuple(
            f"tensor {number}: {_looks(one)}"
            for number, one in enumerate(tensors_in(*[(one.args, one.kwargs) for one in inputs]))
        ),
        "argument of distribute": tuple([f"{name}={value!r}" for name, value in asked.items()]),
    }


def check_alike(wires: Wires, mine: Parts) -> None:
    """Raise on all ranks if they differ."""
    said: list[Any] = wires.gather_all(mine)
    for part in said[0]:
        for rank, other in enumerate(said):
            base = rank - rank % wires.size if part == "batch" else 0  # each replica has a batch of its own
            lines = said[base][part]
            if other[part] != lines:
                pairs = zip_longest(lines, other[part], fillvalue="nothing")
                first, there = next((one, two) for one, two in pairs if one != two)
                raise RankError(
                    f"rank {rank} has another {part} than rank {base}: {there} (on rank {base}: {first}); "
                    f"{_CURES[part]}",
                    on_all=True,
                )


def _model_lines(model: nn.Module) -> Iterator[str]:
    for name, module in model.named_modules():
        yield f"{name or 'the model'} is a {type(module).__name__}"
    for name, weight in weights_of(model).items():
        yield f"{name} is {_looks(weight)}"


def _looks(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}"
