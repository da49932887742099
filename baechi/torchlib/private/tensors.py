"""Tensors and storages: their attributes that torch keeps private."""

from collections.abc import Callable
from typing import Any

import torch

from baechi.torchlib.private.lookup import attribute, named

_MANY = 1 << 30

TensorBase: Any = named(
    "torch._C.TensorBase", "call torch's own methods while `torch.Tensor` has ours", torch.Tensor.__mro__[1]
)
"""The class below `torch.Tensor`."""

write_count: Callable[[torch.Tensor], int] = attribute(
    torch.Tensor, "_version", "see that a layer wrote in place what it was given"
)
view_base: Callable[[torch.Tensor], torch.Tensor | None] = attribute(
    torch.Tensor, "_base", "let views of one tensor stay views of one copy"
)
is_view: Callable[[torch.Tensor], bool] = attribute(
    torch.Tensor, "_is_view", "tell a view, whose history is that of its base", call=True
)
hooks_of: Callable[[torch.Tensor], Any] = attribute(
    torch.Tensor, "_backward_hooks", "let hooks of weights run once a step, not once a microbatch"
)
later_hooks_of: Callable[[torch.Tensor], Any] = attribute(
    torch.Tensor, "_post_accumulate_grad_hooks", "let hooks of weights run once a step, not once a microbatch"
)
storage_address: Callable[[Any], int] = attribute(
    torch.UntypedStorage, "_cdata", "tell storages apart that have no memory"
)
use_count: Callable[[torch.Tensor], int] = attribute(
    torch.Tensor, "_use_count", "see whether a graph refers to a weight that goes elsewhere", call=True
)
storage_use_count: Callable[[int], int] = named(
    "torch._C._storage_Use_Count", "see that only one tensor has a memory", lambda _: _MANY
)
"""Without it, a device that sends a gradient waits until that is read before it goes on."""

make_wrapper: Callable[..., Any] = named(
    "torch.Tensor._make_wrapper_subclass", "make tensors that are still to be computed (use reorder=False)"
)
no_function_override: Any = named(
    "torch._C._disabled_torch_function_impl", "let tensors without values say their shapes"
)
"""In place of `__torch_function__`, so that attributes are read as quickly as a plain tensor's."""
swap_implementation: Callable[[torch.Tensor, torch.Tensor], None] = named(
    "torch._C._swap_tensor_impl", "put other memory behind a tensor that others hold"
)
takes_data_of: Callable[[torch.Tensor, torch.Tensor], bool] = named(
    "torch._has_compatible_shallow_copy_type", "know whether `tensor.data = ...` works", lambda *_: False
)
"""Without it, every weight that moves is swapped: then a backward from before raises on the CPU, too."""

REGISTERED_CONTAINERS: dict[type, Any] = named(
    "torch.utils._pytree.SUPPORTED_NODES", "look into containers of other libraries", {}
)
"""Without it, containers that libraries registered are handed on untouched."""

map_only: Callable[..., Any] = named(
    "torch.utils._pytree.tree_map_only", "compute the values that models decide by (`mask.all()`)"
)

LIST_TYPES: tuple[list[type], ...] = tuple(
    [
        named(path, "let optimizers and clipping take sharded weights in lists", [])
        for path in (
            "torch.optim.optimizer._foreach_supported_types",
            "torch.utils._foreach_utils._foreach_supported_types",
        )
    ]
)
"""The classes of tensors whose optimizers treat all weights in one call, where they may choose."""

multiply_each: Callable[[list[torch.Tensor], torch.Tensor], None] = named(
    "torch._foreach_mul_",
    "hand gradients over by one operator a device",
    lambda tensors, factor: [tensor.mul_(factor) for tensor in tensors],
)
"""Multiplies tensors of one device in place. Without it, each takes an operator of its own."""

add_each: Callable[[list[torch.Tensor], list[torch.Tensor]], object] = named(
    "torch._foreach_add_",
    "add a program's gradients by one operator",
    lambda tensors, others: [one.add_(other) for one, other in zip(tensors, others, strict=True)],
)
"""Adds tensors of one device in place. Without it, each takes an operator of its own."""

SPARSE_PARTS = ("_indices", "_values")
"""What a sparse COO tensor is made of, as it is: `indices()` and `values()` want it coalesced."""

sparse_values: Callable[[torch.Tensor], torch.Tensor] = attribute(
    torch.Tensor, "_values", "find the memory behind a sparse tensor", call=True
)
attribute(torch.Tensor, "_indices", "find the memory behind a sparse tensor", call=True)
attribute(torch.Tensor, "_backward_hooks", "keep the hooks on a weight that moves")
attribute(torch.Tensor, "_post_accumulate_grad_hooks", "keep the hooks on a weight that moves")


def hook_tables(tensor: torch.Tensor) -> tuple[Any, Any]:
    """The tables of hooks on a tensor: on its gradient, and on a leaf's accumulated gradient."""
    return tensor._backward_hooks, tensor._post_accumulate_grad_hooks


def set_hook_tables(tensor: torch.Tensor, tables: tuple[Any, Any]) -> None:
    """Attach tables of hooks to a tensor. Without it, a weight would lose its hooks when it moves."""
    held: Any = tensor
    held._backward_hooks, held._post_accumulate_grad_hooks = tables
