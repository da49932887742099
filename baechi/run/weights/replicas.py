"""Sharded weights under `DistributedDataParallel`, whose buckets take a weight as one memory.

    DistributedDataParallel    other weights, as ever; it leaves sharded weights alone
    this                       shards: at the first call those of the first process;
                               after each backward the mean of the gradients, shard by shard

A process may leave out a weight that another one uses: they tell each other first which have gradients.
It has a process group of its own, so its messages are not taken for those of the buckets.
"""

import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch import distributed, nn

from baechi.run.runtime import Runtime
from baechi.run.weights.match import weights_of
from baechi.torchlib.private.autograd import call_after_backward
from baechi.torchlib.private.parallel import leave_alone, running_parallel
from baechi.torchlib.shards.weight import ShardedWeight


class Replicas:
    """The other processes that train the same weights.

    Args:
        parallel: the `DistributedDataParallel`.
        weights: of the model, by name.

    Attributes:
        syncs: whether the next backward takes the mean; not under `no_sync`.
    """

    def __init__(self, parallel: Any, weights: Mapping[str, torch.Tensor]) -> None:
        self.parallel = weakref.ref(parallel)
        self.syncs = True
        self._waits = False
        named = [weights[name] for name in sorted(weights)]
        self._weights = [weight for weight in named if isinstance(weight, ShardedWeight)]
        ranks = distributed.get_process_group_ranks(parallel.process_group)
        self._group: Any = distributed.new_group(ranks)
        for weight in self._weights:
            for shard in weight.shards:
                distributed.broadcast(shard, ranks[0], group=self._group)
        self._hooks = [
            weight.register_post_accumulate_grad_hook(self._arrived)
            for weight in named  # any of them: a process may use none of those in shards
            if weight.is_leaf and weight.requires_grad
        ]

    def _arrived(self, weight: torch.Tensor) -> None:
        if self.syncs and not self._waits:
            self._waits = True
            call_after_backward(self._average)  # in the order of names: threads of devices have none

    def _average(self) -> None:
        self._waits = False
        processes = distributed.get_world_size(self._group)
        used = [float(weight.grad is not None) for weight in self._weights]
        users = torch.tensor(used, device=self._weights[0].shards[0].device)
        distributed.all_reduce(users, group=self._group)
        for weight, count in zip(self._weights, users.tolist(), strict=True):
            if count and weight.grad is None:
                weight.grad = weight.like([torch.zeros_like(shard) for shard in weight.shards])
            if isinstance(weight.grad, ShardedWeight):
                for shard in weight.grad.shards:
                    distributed.all_reduce(shard, group=self._group)
                    shard.div_(processes)

    def end(self) -> None:
        """Take the mean no more."""
        for hook in self._hooks:
            hook.remove()


def leave_sharded_alone(model: nn.Module, runtime: Runtime) -> None:
    """Let `DistributedDataParallel` leave sharded weights alone."""
    shards = {id(weight) for name, weight in weights_of(model).items() if name in runtime.cuts}
    weights = model.named_parameters(remove_duplicate=False)
    leave_alone(model, [name for name, weight in weights if id(weight) in shards])


def meet_replicas(model: nn.Module, runtime: Runtime) -> None:
    """Before a call: if it is that of a `DistributedDataParallel`, see to its sharded weights."""
    if not distributed.is_available() or not distributed.is_initialized():
        return
    parallel, replicas = running_parallel(), runtime.replicas
    if parallel is not None and (replicas is None or replicas.parallel() is not parallel):
        if replicas is not None:
            replicas.end()
        replicas = runtime.replicas = Replicas(parallel, weights_of(model))
    if replicas is not None:
        replicas.syncs = parallel is not None and parallel.require_backward_grad_sync


def end_replicas(model: nn.Module, runtime: Runtime | None) -> None:
    """The model's weights are whole from now on."""
    leave_alone(model, [])
    if runtime is not None and runtime.replicas is not None:
        runtime.replicas.end()
        runtime.replicas = None
