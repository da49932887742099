"""What processes that compute together share."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import distributed

from baechi.torchlib.private.lookup import named, note_place
from baechi.torchlib.private.patches import Place

_PURPOSE = "tell other processes of the first error"


def default_store() -> Any:
    """The store of torch's default group of processes."""
    found: Callable[[], Any] = named("torch.distributed.distributed_c10d._get_default_store", _PURPOSE)
    return found()


def is_together() -> bool:
    """Whether this process has joined a group of processes."""
    return distributed.is_available() and distributed.is_initialized()


TOTAL_NORM = Place(torch.nn.utils.clip_grad, "_get_total_norm")
"""Without it, `clip_grad_norm_` over several processes raises: it would need gradients of the others."""
note_place(torch.nn.utils.clip_grad, "_get_total_norm", "clip gradients that lie in several processes")

TOTAL_NORM_BY_NAME = Place(torch.nn.utils, "get_total_norm")
"""The same function for users. It is public, so that every torch has it."""

_grouped: Callable[..., Any] = named(
    "torch.utils._foreach_utils._group_tensors_by_device_and_dtype", "clip by the norm of all gradients"
)
_takes_lists: Callable[..., bool] = named(
    "torch.utils._foreach_utils._has_foreach_support",
    "take the norms of many tensors at once",
    lambda *_: False,
)
_norms_of_list: Callable[..., list[torch.Tensor]] = named(
    "torch._foreach_norm", "take the norms of many tensors at once"
)


def grouped_by_kind(tensors: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Tensors by device and dtype, in torch's order."""
    return [group for ((group,), _) in _grouped([list(tensors)]).values()]


def norms_of(tensors: list[torch.Tensor], kind: float, foreach: bool | None) -> list[torch.Tensor]:
    """The norm of each tensor, by the kernels that torch's clipping takes."""
    if tensors and foreach is not False and _takes_lists(tensors, tensors[0].device):
        return list(_norms_of_list(tensors, kind))
    return [torch.linalg.vector_norm(one, kind) for one in tensors]
