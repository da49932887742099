"""Memory that a kernel keeps for its backward, and that only the kernel itself knows.

Fake tensors stand for what an operator's formula says; the workspace of oneDNN's recurrent layer is
in no formula. So the kernel runs once for each shape, on zeros.
"""

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from baechi.backend.operators import flat

_RECURRENT = torch.ops.aten.mkldnn_rnn_layer.default
_LARGEST = 2**28
"""Elements; beyond them nothing is tried."""

_known: dict[Any, int] = {}


def with_workspace(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Any:
    """The result of an operator under fake tensors, its workspace as large as the kernel makes it.

    Args:
        func: the operator.
        args: its positional arguments.
        kwargs: its keyword arguments.
        result: what it returned.
    """
    if func is not _RECURRENT or type(result[3]) is not FakeTensor:
        return result
    plain = tuple([value for value in args if not isinstance(value, torch.Tensor)])
    key = (tuple([(t.shape, t.stride(), t.dtype) for t in flat(args)]), repr(plain))
    if key not in _known:
        _known[key] = _kernel_bytes(args, kwargs)
    workspace = torch.empty(_known[key], dtype=torch.uint8)
    return (*result[:3], workspace)


def _kernel_bytes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    if sum([tensor.numel() for tensor in flat(args)]) > _LARGEST:
        return 0
    with _disable_current_modes():
        real = [
            torch.zeros(value.shape, dtype=value.dtype) if isinstance(value, torch.Tensor) else value
            for value in args
        ]
        return int(_RECURRENT(*real, **kwargs)[3].nbytes)
