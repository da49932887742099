"""Views of one memory that travel together: what is written through one is seen through the others.

code     h = x[:, :4];  layer(x, h)      the layer writes x, and reads h
alone    copy of x, copy of h            two memories: h does not see it
here     copy of x, and h as its view    one memory, as on one device
"""

from collections.abc import Iterable

import torch


def common_bases(tensors: Iterable[torch.Tensor]) -> dict[int, torch.Tensor]:
    """The tensors that other ones are views of, or that are views of the same tensor as others.

    Args:
        tensors: what a layer is given.

    Returns:
        By `id` of such a tensor, the one that it is a view of: itself, if it is no view.
    """
    views: dict[int, dict[int, torch.Tensor]] = {}
    bases: dict[int, torch.Tensor] = {}
    with torch._C.DisableTorchFunctionSubclass():
        for tensor in tensors:
            base = tensor if tensor._base is None else tensor._base
            views.setdefault(id(base), {})[id(tensor)] = tensor
            bases[id(base)] = base
    return {
        key: bases[base]
        for base, group in views.items()
        if len(group) > 1 and all(_is_plain(view, bases[base]) for view in group.values())
        for key in group
    }


def same_view(tensor: torch.Tensor, base: torch.Tensor, copied: torch.Tensor) -> torch.Tensor:
    """A view of a copy, as a tensor is a view of what was copied.

    Args:
        tensor: a view of `base`, or `base`.
        base: what was copied.
        copied: its copy, with the same strides.
    """
    if tensor is base:
        return copied
    offset = tensor.storage_offset() - base.storage_offset() + copied.storage_offset()
    return copied.as_strided(tensor.size(), tensor.stride(), int(offset))


def _is_plain(view: torch.Tensor, base: torch.Tensor) -> bool:
    """Whether a view differs from its base by sizes, strides and offset only."""
    strided = view.layout == base.layout == torch.strided
    return strided and view.dtype == base.dtype and view.is_conj() == base.is_conj()
