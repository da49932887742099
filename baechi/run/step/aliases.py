"""Views of one storage that are copied together, so that a write through one is seen through the others.

code     h = x[:, :4];  layer(x, h)      the layer writes x, and reads h
alone    copy of x, copy of h            two memories: h does not see it
here     copy of x, and h as its view    one memory, as on one device

code     h = flatten(x);  h.add_(1)      flatten works on a copy, and returns a view of that
alone    a view of the copy              x does not see what is written to h
here     the same view, of x             the view of the copy is what h looks like on that device
"""

from collections.abc import Iterable
from typing import Any

import torch

from baechi.torchlib.private.modes import without_subclass_function
from baechi.torchlib.private.tensors import view_base


def common_bases(tensors: Iterable[torch.Tensor]) -> dict[int, torch.Tensor]:
    """Find the tensors that are related as views: with a common base, or one the base of another."""
    views: dict[int, dict[int, torch.Tensor]] = {}
    bases: dict[int, torch.Tensor] = {}
    with without_subclass_function():
        for tensor in tensors:
            base = base_of(tensor)
            views.setdefault(id(base), {})[id(tensor)] = tensor
            bases[id(base)] = base
    return {
        key: bases[base]
        for base, group in views.items()
        if len(group) > 1 and all(is_plain(view, bases[base]) for view in group.values())
        for key in group
    }


def base_of(tensor: torch.Tensor) -> torch.Tensor:
    """What a tensor is a view of; itself, if it is none."""
    base = view_base(tensor)
    return tensor if base is None else base


def same_view(tensor: torch.Tensor, base: torch.Tensor, copied: torch.Tensor) -> torch.Tensor:
    """Make the view of a copy that corresponds to a view of the original."""
    if tensor is base:
        return copied
    offset = tensor.storage_offset() - base.storage_offset() + copied.storage_offset()
    return copied.as_strided(tensor.size(), tensor.stride(), int(offset))


def view_of_original(view: torch.Tensor, copied: torch.Tensor, original: torch.Tensor) -> torch.Tensor | None:
    """The view of the original that a layer would have returned if it had not worked on a copy."""
    with without_subclass_function():
        plain = is_plain(view, copied) and is_plain(view, original)
        if not plain or copied.stride() != original.stride():
            return None
        if view.requires_grad and not _only_views(view, copied):
            return None
        base = original if view.requires_grad else original.detach()
        return same_view(view, copied, base)


def _only_views(view: torch.Tensor, copied: torch.Tensor) -> bool:
    """Whether only torch's own functions of one tensor lie between a copy and its view in the graph."""
    node, end = view.grad_fn, copied.grad_fn
    while node is not None and node is not end:
        before = [one for one, _ in node.next_functions if one is not None]
        if is_custom(node) or len(before) != 1:
            return False
        node = before[0]
    return node is not None


def is_custom(node: Any) -> bool:
    """Whether an `autograd.Function` made a node."""
    return isinstance(node, torch.autograd.function.BackwardCFunction)


def is_plain(view: torch.Tensor, base: torch.Tensor) -> bool:
    """Whether a view differs from its base by sizes, strides and offset only."""
    strided = view.layout == base.layout == torch.strided
    return strided and view.dtype == base.dtype and view.is_conj() == base.is_conj()
