"""Whether a module's weights have memory."""

from torch import nn


def is_on_meta(module: nn.Module) -> bool:
    """Whether a parameter or buffer is on the `meta` device: it has a shape, but no memory."""
    return any(tensor.is_meta for tensor in (*module.parameters(), *module.buffers()))
