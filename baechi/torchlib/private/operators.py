"""Operators: their classes, their schemas, and what torch's dispatcher knows of them."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from baechi.torchlib.private.lookup import attribute, kind, named

if TYPE_CHECKING:
    from torch._ops import HigherOrderOperator as HigherOrderOperator
    from torch._ops import OpOverload as OpOverload
else:
    OpOverload = kind("torch._ops.OpOverload", "tell operators from functions")
    HigherOrderOperator = kind("torch._ops.HigherOrderOperator", "refuse operators that take functions")

schema_of: Callable[[Any], Any] = attribute(
    torch.ops.aten.add.Tensor, "_schema", "know which arguments an operator writes"
)
entrance_of: Callable[[Any], Callable[..., Any]] = attribute(
    torch.ops.aten.add.Tensor, "_op", "call operators without Python in between"
)
TO_COPY: Any = named("torch.ops.aten._to_copy.default", "cast what lies in other processes", None)

UNSAFE_VIEW: Any = named("torch.ops.aten._unsafe_view.default", "leave out views that do nothing", None)
"""A view of what nothing else reads."""

has_kernel: Callable[[str, str], bool] = named(
    "torch._C._dispatch_has_kernel_for_dispatch_key", "emulate in inference mode what an operator calls"
)
_kernel_at: Callable[[Any], Callable[..., Any]] = attribute(
    torch.ops.aten.add.Tensor, "_op_dk", "emulate in inference mode what an operator calls"
)
_composite = named(
    "torch._C.DispatchKey.CompositeImplicitAutograd", "emulate in inference mode what an operator calls"
)
_views_and_writes = named("torch._C.DispatchKey.ADInplaceOrView", "note views and writes in inference mode")
with_views_and_writes_noted: Callable[[], AbstractContextManager[object]] = partial(
    named("torch._C._SetExcludeDispatchKeyGuard", "note views and writes in inference mode"),
    _views_and_writes,
    False,
)
"""While this is open, torch notes views and counts writes, in inference mode, too."""

_kernels: Callable[[str, str, str], Any] = named(
    "torch._C._dispatch_library", "predict what operators keep for backward on a GPU"
)

MACHINERY = ("torch._ops", "torch.fx.", "torch.jit.", "torch._dynamo.", "torch.utils.hooks")
"""Beginnings of the names of modules whose objects no model keeps tensors in. They need not exist."""


def composite_kernel(func: Any) -> Callable[..., Any]:
    """Torch's own kernel of an operator that only calls others, past a Python one."""
    return partial(_kernel_at(func), _composite)


@contextmanager
def operators_replaced(kernels: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """While this is open, operators of torch that only call others run as functions of ours on the CPU."""
    ours = _kernels("IMPL", "aten", "AutogradCPU")
    try:
        for name, kernel in kernels.items():
            ours.impl(name, "AutogradCPU", kernel)
        yield
    finally:
        ours.reset()
