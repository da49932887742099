"""What of a tensor in pieces is written to a file: one plain tensor on the host.

A tensor that is written under several names (a tie) is one storage in the file, as of a plain tensor.
"""

from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import nn

from baechi.torchlib.private.tensors import write_count
from baechi.torchlib.split_tensors.tensor import SplitTensor

_written: "WeakValueDictionary[tuple[Any, ...], torch.UntypedStorage]" = WeakValueDictionary()
"""By pieces and their versions: the storage on the host, as long as what writes the file holds it."""


def written_form(tensor: SplitTensor) -> torch.Tensor:
    """The whole on the host; a `Parameter` if the tensor is one.

    Args:
        tensor: a tensor in pieces.
    """
    key = tuple([(id(piece.untyped_storage()), write_count(piece)) for piece in tensor.pieces])
    storage = _written.get(key)
    if storage is None:
        whole = tensor.on_host()
        _written[key] = whole.untyped_storage()
    else:
        whole = torch.empty(0, dtype=tensor.dtype).set_(storage, 0, tensor.shape, tensor.stride())
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(whole, tensor.requires_grad)
    return whole.requires_grad_(tensor.requires_grad)
