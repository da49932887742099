"""A batch with other rows, each unlike the others: microbatches that read each other's would show."""

import torch

from baechi.records.inputs import Inputs
from baechi.torchlib.tensors.pytree import map_tensors
from baechi.verbs.batches import batch_size, resized_batch


def with_rows(inputs: Inputs, rows: int) -> Inputs:
    """Rows repeated, each rolled by one more place than the one before.

    Args:
        inputs: what a model is called with.
        rows: how many rows are wanted.

    Raises:
        ValueError: nothing in it has rows.
    """
    size = batch_size(inputs)
    if size is None:
        raise ValueError("no tensor of the batch has rows")
    more = resized_batch(inputs, size, rows)

    def rolled(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() < 2 or len(tensor) != rows:
            return tensor
        return torch.stack([row.roll(number, -1) for number, row in enumerate(tensor)])

    args, kwargs = map_tensors(rolled, (more.args, more.kwargs))
    return Inputs(*args, **kwargs)
