"""`x.set_(y)` in the code of a distributed model: what is set comes to where `x` lies.

Torch asks no mode before `set_`, and refuses a `y` of another device. Reversible blocks put their input back
with it in backward, from a value that was computed wherever their layers are.
"""

from typing import Any

import torch

from baechi.run.step.glue import GlueMode
from baechi.torchlib.private.modes import function_modes
from baechi.torchlib.private.patches import TENSOR_SET
from baechi.torchlib.private.tensors import TensorBase

_original: Any = TensorBase.set_


def watch_set() -> None:
    """From now on, what is set in a step of a distributed model travels, if it lies elsewhere."""
    TENSOR_SET.put(_set)


def _set(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    source = args[0] if args else kwargs.get("source")
    if isinstance(source, torch.Tensor) and source.device != tensor.device:
        modes = [mode for mode in function_modes() if isinstance(mode, GlueMode)]
        if modes:
            step = modes[-1].step
            brought = step.bring(source, step.backend.place_of(tensor))
            return _original(tensor, brought, *args[1:])
    return _original(tensor, *args, **kwargs)
