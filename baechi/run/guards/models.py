"""Models that cannot be distributed as they are given: what they are, and what to give instead."""

from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from baechi.errors import BaechiError
from baechi.torchlib.private.modules import has_forward

_SHARDED = frozenset(["FullyShardedDataParallel", "FSDPModule"])
"""Classes that shard weights over processes, by name: importing them takes long."""


def refuse_foreign(model: Any) -> None:
    """Raise if a model, or a part of it, is no module whose code and weights baechi can take over."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model is {_in_words(model)}: it has to be a torch.nn.Module{_instead_of(model)}")
    if isinstance(model, torch.jit.ScriptModule):
        raise BaechiError(
            f"model is a {type(model).__name__}, which torch.jit made: its code runs outside of Python, and "
            "its layers cannot be reached. Distribute the module that it was made of"
        )
    if not has_forward(model):
        raise BaechiError(
            f"model is a {type(model).__name__}, which has no forward: it is called by none. Give the module "
            "whose code calls what is in it"
        )
    for name, module in model.named_modules():
        where = f"its part {name}" if name else "model"
        if type(module).__name__ == "TopLevelTracedModule":
            raise BaechiError(
                f"{where} was traced by torch.jit.trace: put the module there that it was made of (one of "
                "torch.jit.script runs, as one layer)"
            )
        if isinstance(module, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            raise BaechiError(
                f"{where} is a {type(module).__name__}: distribute what is inside, its .module. "
                "For several processes wrap the distributed model in DistributedDataParallel afterwards"
            )
        if not _SHARDED.isdisjoint(kind.__name__ for kind in type(module).__mro__):
            raise BaechiError(
                f"{where} ({type(module).__name__}) is sharded by FSDP, which places its weights itself: "
                "distribute the module before it is sharded, and do not shard it"
            )
        _refuse_lazy(name, module)


def _refuse_lazy(name: str, module: nn.Module) -> None:
    held = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
    lazy = [f"{name}.{key}".lstrip(".") for key, weight in held if is_lazy(weight)]
    if lazy:
        raise BaechiError(
            f"{', '.join(lazy)} ({type(module).__name__}) has no shape before the first call: call the "
            "model once with a batch (under torch.no_grad), then distribute it"
        )


def _in_words(model: Any) -> str:
    return f"the class {model.__name__}" if isinstance(model, type) else f"of type {type(model).__name__}"


def _instead_of(model: Any) -> str:
    if isinstance(model, type) and issubclass(model, nn.Module):
        return f"; give an instance, {model.__name__}(...)"
    if type(model).__name__ == "ExportedProgram":
        return "; give the module that was exported"
    if isinstance(model, torch.Tensor) or not callable(model):
        return ""
    return "; a function goes into the forward of one"
