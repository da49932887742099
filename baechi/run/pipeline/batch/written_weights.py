"""Weights that a model's forward writes (a teacher's average, a norm that is kept): a look puts them back."""

from typing import Any

import torch
from torch import nn

from baechi.run.pipeline.batch.hidden_writes import At, unseen
from baechi.torchlib.operators.facts import facts_of, writes_of
from baechi.torchlib.private.modes import UntracedDispatchMode
from baechi.torchlib.private.operators import schema_of
from baechi.torchlib.private.tensors import storage_address
from baechi.torchlib.shards.tensor import plain_parts


class WrittenWeights(UntracedDispatchMode):
    """Within this context a weight is copied before an operator writes it; afterwards it is as before.

    Args:
        model: the model.
        at: a context in which a tensor's device computes.
    """

    def __init__(self, model: nn.Module, at: At) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._model, self._at = model, at
        self._by_memory: dict[int, torch.Tensor] = {}
        self._before: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def __enter__(self) -> Any:
        for weight in self._model.parameters():
            for shard in plain_parts(weight):
                if shard.layout == torch.strided and not shard.is_meta:
                    self._by_memory[storage_address(shard.untyped_storage())] = shard
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)  # type: ignore[no-untyped-call]
        for weight, before in self._before.values():
            with unseen(self._at, weight):
                weight.detach().copy_(before)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator; of the weights that it writes, copies are kept."""
        kwargs = kwargs or {}
        if schema_of(func).is_mutable:
            for tensor in writes_of(facts_of(func), args, kwargs):
                self._keep(tensor)
        return func(*args, **kwargs)

    def _keep(self, tensor: torch.Tensor) -> None:
        if tensor.layout != torch.strided:
            return
        address = storage_address(tensor.untyped_storage())
        if address in self._by_memory and address not in self._before:
            weight = self._by_memory[address]
            with unseen(self._at, weight):
                self._before[address] = weight, weight.detach().clone()
