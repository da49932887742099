"""Patched torch entry points that function modes do not see; they would take deferred tensors as real.

`autograd.Function.apply`, `torch.vmap`, `torch.func.grad` and checkpointing pass tensors straight to C++.
While a step is open, the patches first launch the layers that deferred arguments wait for. Inside a
Function's own code, layers launch in the code's order. The gradients that its backward returns are moved to
where its inputs lie.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils.checkpoint import CheckpointFunction

from baechi.run.guards.returned_gradients import return_home
from baechi.run.reorder.deferred_values import force
from baechi.run.state.regions import function_code
from baechi.run.step.glue import GlueMode
from baechi.torchlib.private.autograd import current_graph_task_id
from baechi.torchlib.private.modes import function_modes
from baechi.torchlib.private.patches import (
    CHECKPOINTED,
    FUNCTION_APPLY,
    GRAD_INPUTS,
    VMAP_BATCH,
    VMAP_INPUTS,
    Place,
)

_lock = threading.Lock()
_open_steps: dict[object, GlueMode] = {}
"""In all threads, with their glue modes. The patches are in place while there is one."""


@contextmanager
def entrances_watched(mode: GlueMode) -> Iterator[None]:
    """Within this context, the patched entry points launch deferred arguments."""
    step = object()
    try:
        with _lock:
            _open_steps[step] = mode
            if len(_open_steps) == 1:
                for place, watched in _ENTRANCES:
                    place.put(watched)
        yield
    finally:
        try:
            _leave(step)
        finally:  # an exception of a signal's handler may have come in the line above
            _leave(step)


def _leave(step: object) -> None:
    with _lock:
        _open_steps.pop(step, None)
        if not _open_steps:
            for place, _ in _ENTRANCES:
                place.take_back()


def _mode_here() -> GlueMode | None:
    """The glue mode of the open step if the model's own code runs here; None inside a layer."""
    open_modes = _open_steps.values()
    return next(
        (mode for mode in function_modes() if isinstance(mode, GlueMode) and mode in open_modes), None
    )


def force_seen(values: Any, reason: str) -> None:
    """Launch what some values wait for, since code that function modes do not see reads them."""
    mode = _mode_here()
    if mode is not None and mode.step.reorder is not None:
        mode.step.reorder.launch_all(reason)
    else:  # inside a layer
        force(values, reason)


def _apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
    force_seen((args, kwargs), f"{cls.__name__}.apply takes values")
    mode = None if cls.__module__.startswith("baechi.") else _mode_here()  # ours move gradients themselves
    if cls is CheckpointFunction:
        args = (_in_a_step(args[0], wholes=True), *args[1:])
    if mode is not None:
        args = mode.joined(args)
        if mode.step.boundary is not None:
            with mode.off():
                args = mode.step.boundary.take_in(args)
    function_code.depth += 1
    try:
        result = FUNCTION_APPLY.original.__get__(None, cls)(*args, **kwargs)
    finally:
        function_code.depth -= 1
    if mode is not None:
        return_home(cls, args, result, mode.step.runtime)
        if mode.step.boundary is not None:
            with mode.off():
                mode.step.boundary.made(result)
    return result


def _process_batched_inputs(in_dims: Any, args: Any, func: Any) -> Any:
    force_seen(args, "vmap takes values")  # before the transform begins: no layer may launch inside
    return VMAP_INPUTS.original(in_dims, args, func)


def _add_batch_dim(tensor: Any, *args: Any) -> Any:
    force_seen([tensor], "vmap takes values")
    return VMAP_BATCH.original(tensor, *args)


def _wrap_for_grad(tensor: Any, *args: Any) -> Any:
    force_seen([tensor], "torch.func takes values")
    return GRAD_INPUTS.original(tensor, *args)


def _checkpointed(region: Any, *args: Any, **kwargs: Any) -> Any:
    force_seen((args, kwargs), "checkpointing keeps values")
    return CHECKPOINTED.original(_in_a_step(region), *args, **kwargs)


def _in_a_step(region: Any, *, wholes: bool = False) -> Any:
    """Wrap a checkpointed region, so that its second run, in backward, is in a step from its first op on."""
    mode = _mode_here()
    if mode is None:
        return region
    runtime = mode.step.runtime

    def run(*args: Any, **kwargs: Any) -> Any:
        if current_graph_task_id() == -1:  # not in backward: the first run, inside the forward's step
            return region(*args, **kwargs)
        runtime.step_until_backward_ends()
        glue = runtime.glue
        assert isinstance(glue, GlueMode)
        step = glue.step
        before, step.one_device = step.one_device, True
        try:
            with entrances_watched(glue), runtime.backend.running_again():  # regions inside, too
                result = region(*args, **kwargs)
                return glue.joined(result) if wholes else result
        finally:
            step.one_device = before

    return run


_ENTRANCES: tuple[tuple[Place, Any], ...] = (
    (FUNCTION_APPLY, classmethod(_apply)),
    (VMAP_BATCH, _add_batch_dim),
    (GRAD_INPUTS, _wrap_for_grad),
    (VMAP_INPUTS, _process_batched_inputs),
    (CHECKPOINTED, _checkpointed),
)
