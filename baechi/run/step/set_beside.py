"""`x.set_(y)` in the code of a distributed model: `y` is brought to the device of `x` first.

Function modes do not see `set_`, and torch refuses a `y` on another device. Reversible blocks use it in
backward to restore their input, from a value that was computed on their layers' devices.
"""

from typing import Any

import torch

from baechi.run.step.glue import GlueMode
from baechi.torchlib.private.modes import device_of, function_modes
from baechi.torchlib.private.patches import TENSOR_SET
from baechi.torchlib.private.tensors import TensorBase

_original: Any = TensorBase.set_


def watch_set() -> None:
    """Patch `set_` so that in a distributed model's step its source is brought to the target's device."""
    TENSOR_SET.put(_set)


def _set(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    source = args[0] if args else kwargs.get("source")
    if isinstance(source, torch.Tensor) and device_of(source) != device_of(tensor):
        modes = [mode for mode in function_modes() if isinstance(mode, GlueMode)]
        if modes:
            step = modes[-1].step
            brought = step.bring(source, step.backend.place_of(tensor))
            return _original(tensor, brought, *args[1:])
    return _original(tensor, *args, **kwargs)
