"""Modules whose activations are not kept: backward runs their forward again (activation checkpointing).

    forward    a call of the module keeps its arguments, and the states of random generators
    backward   the first layer inside that needs an activation runs the whole call again:
               same draws, same autocast, running statistics as they are; then each layer's backward
               frees what the second run kept for it

Torch's own checkpoint does it (without reentry). So what holds of code that users checkpoint holds here:
layers inside may lie on any device, and launch in the code's order.
"""

import functools
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.utils.checkpoint import CheckpointError, checkpoint

from baechi.backend.virtual.current import at_work
from baechi.errors import BaechiError, note
from baechi.run.binding import binding_of
from baechi.run.guards.entrances import force_seen
from baechi.torchlib.dynamo import uncompiled
from baechi.torchlib.modules.intercept import forward_to_run, is_replaced, replace_forward
from baechi.torchlib.private.autograd import CHECKPOINT_CHECKS
from baechi.torchlib.private.modes import without_torch_function
from baechi.torchlib.private.modules import buffer_table, forward_pre_hooks, spectral_kind

_WITHOUT_DEVICE = "baechi: without device"

NOT_THE_SAME_TWICE = (
    "does not compute the same when it runs again. Does it fill a cache (then config.use_cache = False "
    "helps), or count its calls? Leave it out of recompute"
)

_SECOND_RUN = "in the second run of "
_OF_THE_DEVICES = (BaechiError, torch.OutOfMemoryError)


def _shape_and_dtype(tensor: torch.Tensor) -> dict[str, Any]:
    """What torch compares of what both runs save, but for the device.

    A tensor that the code makes of nothing lies on no emulated device until one uses it, so the second run
    may find another one.
    """
    return {"shape": tensor.shape, "dtype": tensor.dtype}


def _as_it_is(check: Callable[[torch.Tensor], Any], tensor: torch.Tensor) -> Any:
    """What torch compares, unseen by modes: to the model's own code all tensors lie on one device."""
    with without_torch_function():
        return check(tensor)


if CHECKPOINT_CHECKS:
    CHECKPOINT_CHECKS[_WITHOUT_DEVICE] = _shape_and_dtype
    CHECKPOINT_CHECKS["default"] = functools.partial(_as_it_is, CHECKPOINT_CHECKS["default"])


@uncompiled
def call_recomputed(
    call: Callable[..., Any], device: str, module: nn.Module, *args: Any, **kwargs: Any
) -> Any:
    """Run a module, and keep nothing for backward but what it is given."""
    if not torch.is_grad_enabled():
        return call(module, *args, **kwargs)
    binding = binding_of(module)
    if binding is None or not device or binding.runtime.glue is None:
        return _checkpointed(call, module, args, kwargs)
    step = binding.runtime.glue.step
    force_seen((args, kwargs), "checkpointing keeps values")
    with binding.runtime.aside():
        step.reach_region(binding.name, args, kwargs)  # in its stage, what it is given is sent once
        (args, kwargs), loans = step.lend((args, kwargs), device)
    result = _checkpointed(call, module, args, kwargs)
    with binding.runtime.aside():
        return loans.settle(result)


def _checkpointed(call: Callable[..., Any], module: nn.Module, args: Any, kwargs: Any) -> Any:
    region, contexts = functools.partial(_region, call, module), functools.partial(_contexts, module)
    compared = "default" if at_work() is None or _WITHOUT_DEVICE not in CHECKPOINT_CHECKS else _WITHOUT_DEVICE
    return checkpoint(
        region, args, kwargs, use_reentrant=False, context_fn=contexts, determinism_check=compared
    )


def differs_when_run_again(error: BaseException) -> bool:
    """Whether an error says that a module does not compute the same twice."""
    known: list[str] = getattr(error, "__notes__", [])
    return isinstance(error, CheckpointError) or any(one.startswith(_SECOND_RUN) for one in known)


def wrap_recomputed(model: nn.Module, names: Iterable[str]) -> None:
    """Let backward run modules again, of a model that lies on one device."""
    for name in names:
        module = model.get_submodule(name)
        if not is_replaced(module):
            replace_forward(module, functools.partial(call_recomputed, _call_plainly, ""))


def _call_plainly(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Run a module that has a replaced `forward` for no other reason."""
    return forward_to_run(module)(*args, **kwargs)


def _region(call: Callable[..., Any], module: nn.Module, args: Any, kwargs: Any) -> Any:
    return call(module, *args, **kwargs)


def _contexts(module: nn.Module) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """What the two runs of a region are in."""
    return nullcontext(), _StatisticsFrozen(module)


def _is_spectral(module: nn.Module) -> bool:
    """Whether it is torch's spectral norm, or has it as a hook: it goes on in each forward of training."""
    hooks = forward_pre_hooks(module).values()
    return type(module) is spectral_kind or any(isinstance(hook, SpectralNorm) for hook in hooks)


class _StatisticsFrozen:
    """Within this context, running statistics stay as they are, and the vectors of spectral norms do: a batch
    counts once.

    A momentum of 0 leaves them bit for bit. The kernels are the same, and what autograd saves is, too; torch
    compares both runs. Entered again for each backward through the region.

    Args:
        module: the module that runs again.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._undo = ExitStack()

    def __enter__(self) -> None:
        for norm in self._module.modules():
            buffers = buffer_table(norm)
            if norm.training and buffers.get("running_mean") is not None and "momentum" in vars(norm):
                self._undo.callback(vars(norm).__setitem__, "momentum", norm.momentum)
                vars(norm)["momentum"] = 0.0
                if "num_batches_tracked" in buffers:
                    self._undo.callback(buffers.__setitem__, "num_batches_tracked", norm.num_batches_tracked)
                    buffers["num_batches_tracked"] = None
            if norm.training and _is_spectral(norm):  # its vectors move in training only
                self._undo.callback(vars(norm).__setitem__, "training", True)
                vars(norm)["training"] = False

    def __exit__(self, _: object, error: BaseException | None, _trace: object) -> None:
        self._undo.close()
        # of the module, since its first run went well with the same arguments
        if isinstance(error, Exception) and not isinstance(error, _OF_THE_DEVICES):
            note(error, f"{_SECOND_RUN}a {type(self._module).__name__}, which {NOT_THE_SAME_TWICE}")
