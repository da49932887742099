"""Whether a module's weights are there."""

from torch import nn


def is_on_meta(module: nn.Module) -> bool:
    """Whether a parameter or buffer is on the `meta` device: it has a shape, and nothing in it.

    Args:
        module: any module.
    """
    return any(tensor.is_meta for tensor in (*module.parameters(), *module.buffers()))
