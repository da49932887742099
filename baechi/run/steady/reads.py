"""Whether a layer that was captured in evaluation writes nothing in training: by class and operators.

Capture saw the operators of one setting of the training flag. They are those of the other setting too
where no code of the layer asks for the flag, or where all that it does with it is known.
"""

from functools import lru_cache
from typing import Any

import torch
from torch import nn

from baechi.torchlib.modules.intercept import is_replaced
from baechi.torchlib.private.modules import forward_hooks, forward_pre_hooks
from baechi.torchlib.python_code import codes_of, functions_of

_FLAG = "training"

_DROPS = (
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
    nn.RReLU,
)
_KNOWN = (
    nn.RNN,
    nn.LSTM,
    nn.GRU,
    nn.MultiheadAttention,
    nn.TransformerEncoderLayer,
    nn.TransformerDecoderLayer,
)
"""Classes whose code asks for the flag, and writes nothing for it: it drops, or chooses a kernel."""


def reads_in_both_settings(layer: nn.Module) -> bool:
    """Whether a layer that writes nothing in evaluation writes nothing in training either."""
    return all(_is_known(module) or _ignores_the_flag(module) for module in layer.modules())


def _is_known(module: nn.Module) -> bool:
    kind = type(module)
    return is_bare(module) and (kind in _KNOWN or (kind in _DROPS and not getattr(module, "inplace", False)))


def _ignores_the_flag(module: nn.Module) -> bool:
    compiled = isinstance(module, torch.jit.ScriptModule)  # its code is not Python's
    kind: Any = type(module)
    return not compiled and is_bare(module) and not _names_the_flag(kind)


def is_bare(module: nn.Module) -> bool:
    """Whether all code of a module is its class's: no hooks, and no forward but the class's or ours."""
    own = "forward" in vars(module) and not is_replaced(module)
    return not (own or forward_hooks(module) or forward_pre_hooks(module))


@lru_cache(maxsize=1024)
def _names_the_flag(kind: Any) -> bool:
    classes = kind.__mro__[: kind.__mro__.index(nn.Module)]
    functions = [one for held in classes for value in vars(held).values() for one in functions_of(value)]
    codes = [code for function in functions for code in codes_of(function)]
    return any(_FLAG in code.co_names or _FLAG in code.co_consts for code in codes)
