"""Modules of torch that take a fused path in evaluation, unless a torch function mode is on.

The fused path rounds differently. So while these run, no mode of ours may be on, or the numbers
would not be those of the single-device model.
"""

import torch
from torch import nn

FUSED = (nn.MultiheadAttention, nn.TransformerEncoderLayer)
"""Read their children's weights themselves, in one kernel: always kept whole."""

FUSED_STACKS = (nn.TransformerEncoder,)
"""Hand nested tensors to fused layers, which may lie on several devices."""


def is_compiled(module: nn.Module) -> bool:
    """Whether a module is what a compiler made, with all that is in it: wrappers stay outside of it."""
    return type(module).__name__ == "OptimizedModule" or isinstance(module, torch.jit.ScriptModule)
