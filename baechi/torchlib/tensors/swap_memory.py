"""Other memory behind a tensor, on any type of device: the object stays, with hooks and attributes.

    Parameter ──▶ implementation on the host          `tensor.data = ...`, where torch lets it:
        └───────▶ implementation on the device         between the CPU and most types it does not

Modules, optimizers and ties hold the object, so they hold the new memory then. Hooks on the tensor go
with it. What autograd noted before belongs to the old implementation: a backward through it would add
to a gradient that is gone, so it raises.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from baechi.errors import BaechiError
from baechi.torchlib.private.tensors import (
    hook_tables,
    set_hook_tables,
    swap_implementation,
    takes_data_of,
    use_count,
)


def exchange(tensor: torch.Tensor, data: torch.Tensor) -> None:
    """Put other memory behind a tensor.

    The gradient of a leaf is not moved: where the type of device changes it is gone afterwards.
    """
    if takes_data_of(tensor, data):
        tensor.data = data
    else:
        _swap(tensor, data)


def exchange_kind(
    tensor: torch.Tensor, data: torch.Tensor, kind: type[torch.Tensor], attributes: Mapping[str, Any]
) -> None:
    """Put memory of another kind behind a tensor, such as shards on several devices: its class changes.

    The gradient of a leaf is gone afterwards.
    """
    _swap(tensor, data, kind, attributes)


def _swap(
    tensor: torch.Tensor,
    data: torch.Tensor,
    kind: type[torch.Tensor] | None = None,
    attributes: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    if not tensor.is_leaf:
        raise BaechiError(
            f"a tensor of shape {tuple(tensor.shape)} that was computed from others ({tensor.grad_fn}) "
            f"cannot go from {tensor.device} to {data.device}: detach it before the model is distributed"
        )
    hooks = hook_tables(tensor)
    was_used = tensor.requires_grad and use_count(tensor) > 1
    before = torch.autograd.graph.get_gradient_edge(tensor).node if was_used else None
    where, old = tensor.device, _detached(data, tensor.requires_grad)
    swap_implementation(tensor, old)
    if kind is not None:
        _exchange_kind(tensor, old, kind, attributes)
    set_hook_tables(old, (None, None))
    set_hook_tables(tensor, hooks)
    if before is not None:
        _end(before, tensor, where)


def _exchange_kind(
    tensor: torch.Tensor, old: torch.Tensor, kind: type[torch.Tensor], attributes: Mapping[str, Any]
) -> None:
    """Class and attributes go with the implementation; a graph may still refer to the old one."""
    tensor.__class__, old.__class__ = kind, type(tensor)
    for name, value in attributes.items():
        if name in vars(tensor):
            setattr(old, name, vars(tensor).pop(name))
        if value is not None:
            setattr(tensor, name, value)


def _detached(data: torch.Tensor, requires_grad: bool) -> torch.Tensor:
    return data.detach().requires_grad_(requires_grad)


def _end(before: Any, tensor: torch.Tensor, where: torch.device) -> None:
    """Move the hooks of a weight's `AccumulateGrad` node to its new node. The old node raises an error.

    The new node lives as long as the old one, which a graph holds, or the code that put hooks on it.
    """
    with torch.enable_grad():
        after = _Read.apply(tensor).grad_fn.next_functions[0][0]  # type: ignore[no-untyped-call]
    first, last = _hooks_of(before.register_prehook), _hooks_of(before.register_hook)

    def refuse(grads: Any) -> None:
        raise BaechiError(
            f"this backward goes through a weight of shape {tuple(after.variable.shape)} as it was on "
            f"{where}, before its model was distributed or restored: call backward before that, or the model "
            "after it"
        )

    own = before.register_prehook(refuse).id  # into the same table, when there is one
    after.register_prehook(lambda given: _run(first, own, given))
    after.register_hook(lambda added, given: _run(last, own, added, given))


class _Read(torch.autograd.Function):
    """Leads to a tensor without an operator: one that lies elsewhere has no values to view."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        return torch.zeros((), device="cpu")


def _hooks_of(register: Callable[[Callable[..., None]], RemovableHandle]) -> Any:
    """The table of hooks of an autograd node, which torch shows to handles only."""
    handle = register(lambda *_: None)
    table = handle.hooks_dict_ref()
    handle.remove()
    return table


def _run(hooks: Mapping[int, Callable[..., Any]], skip: int, grads: Any, *rest: Any) -> Any:
    for key, hook in list(hooks.items()):
        changed = None if key == skip else hook(grads, *rest)
        grads = grads if changed is None else changed
    return grads
