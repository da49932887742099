"""Refuse what a distributed model cannot do, and warn of what has no effect, with the cure."""

import functools
import warnings
from collections.abc import Mapping
from typing import Any, NoReturn

import torch
from torch import nn

from baechi.errors import BaechiError
from baechi.torchlib.private.modes import dispatch_mode_count, makes_fx_graph
from baechi.torchlib.private.modules import is_tracing, parse_to

DEVICE_MAP = "hf_device_map"
"""Hugging Face's Trainer does not move a model that has this attribute."""

_MOVERS = ("to", "cuda", "cpu")

_ASKED_BY_SCRIPT = "__prepare_scriptable__"
"""What `torch.jit.script` asks a module for, to script that in its place."""


def refuse_moves(model: nn.Module, devices: Mapping[str, str], device_map: Mapping[str, str]) -> None:
    """Refuse moves of the whole model from now on; casts of its dtype still work.

    Where all layers lie on one device, and functional ops elsewhere, `model.to` with that device does
    nothing: trainers call it. They read a map of one entry as none, so the model shows them one by layers.
    """
    together = len(set(devices.values())) == 1
    for name in _MOVERS:
        model.__dict__[name] = functools.partial(_refuse, model)
    model.__dict__["to"] = functools.partial(_cast_only, model, together)
    refuse_scripting(model)
    model.__dict__[DEVICE_MAP] = dict(devices if together else device_map)


def allow_moves(model: nn.Module) -> None:
    """Undo `refuse_moves`."""
    for name in (*_MOVERS, DEVICE_MAP, _ASKED_BY_SCRIPT):
        model.__dict__.pop(name, None)


def refuse_scripting(model: nn.Module) -> None:
    """Refuse `torch.jit.script` of a distributed model, which would meet wrappers instead of its code."""
    model.__dict__[_ASKED_BY_SCRIPT] = functools.partial(_refuse_tracing, model)


def refuse_tracing(model: nn.Module) -> None:
    """Raise if calls are being traced: the trace would contain transfers to fixed devices."""
    if is_tracing() or torch.compiler.is_exporting() or (dispatch_mode_count() and makes_fx_graph()):
        _refuse_tracing(model)


def _refuse_tracing(model: nn.Module) -> NoReturn:
    raise BaechiError(
        f"this {type(model).__name__} is distributed, and cannot be traced, scripted or exported (as "
        "torch.jit.trace, torch.jit.script, torch.export, make_fx and torch.func.linearize do): call "
        "baechi.restore(model) first, and distribute it again afterwards"
    )


def tell_compiled(model: nn.Module) -> None:
    """Warn that compiling a distributed model as a whole has no effect."""
    warnings.warn(
        f"this {type(model).__name__} is distributed: torch.compile of the whole model has no effect, it "
        "runs as it was written; compile its layers before baechi.distribute instead",
        stacklevel=2,
    )


def _cast_only(model: nn.Module, together: bool, *args: Any, **kwargs: Any) -> nn.Module:
    device = parse_to(*args, **kwargs)[0]
    if device is not None and not (together and _lies_at(model, device)):
        _refuse(model, device)
    moved: nn.Module = type(model).to(model, *args, **kwargs)
    return moved


def _lies_at(model: nn.Module, device: torch.device) -> bool:
    there = torch.empty(0, device=device).device  # with the index of the current device, if it has none
    return all(weight.device == there for weight in (*model.parameters(), *model.buffers()))


def _refuse(model: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
    raise BaechiError(
        f"this {type(model).__name__} is distributed over several devices and stays where its plan says: "
        "leave out the move to a device, or call baechi.restore(model, device) first"
    )
