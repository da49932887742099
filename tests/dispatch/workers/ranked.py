"""What each process of a distributed job runs; it is imported by name."""

import os
from typing import NoReturn

import torch
from process_group import process_group
from torch import distributed, nn

import baechi


def rows() -> torch.Tensor:
    """The whole input, the same in each process."""
    return torch.randn(10, 8, generator=torch.Generator().manual_seed(0))


def model() -> nn.Module:
    """The model, the same in each process."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).double()


def run(rank: int, meeting: str, result: str) -> NoReturn:
    """Run this process's rows on its device, as `torchrun` would start it, and put all rows together.

    Args:
        rank: which of two processes this is.
        meeting: a file where they find each other.
        result: where rank 0 saves all outputs, and the sum of gradients.
    """
    os.environ.update(LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE="2")
    torch.set_num_threads(1)
    with process_group(meeting, rank, 2):
        cluster = baechi.Cluster.virtual(2)
        scheduler = baechi.RankScheduler(cluster, batch_size=2)
        assert list(scheduler.load) == [f"cpu:{rank}"]
        net = model()
        with cluster:
            found = baechi.dispatch(net, scheduler)(rows().double()[rank::2])
            found.square().sum().backward()
            peaks = cluster.emulation.peak_bytes
        assert [name for name, size in peaks.items() if size] == [f"cpu:{rank}"]
        parts = [torch.empty_like(found) for _ in range(2)]
        distributed.all_gather(parts, found.detach())
        grads = torch.cat([weight.grad.flatten() for weight in net.parameters() if weight.grad is not None])
        distributed.all_reduce(grads)
        if rank == 0:
            torch.save((parts, grads), result)
    os._exit(0)  # a thread of the group that asks for the lock while the interpreter ends aborts the process
