"""One of two processes that train a split model by DDP, each on batches of its own: `rank file`."""

import copy
import sys
from contextlib import nullcontext
from typing import Any

import torch
from process_group import process_group
from run.split.split_layers import assert_same, split_on, tied_on_devices, twins, words
from run.split.test_pipelined import BATCH, Wide, pipelined
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

import baechi


def train(model: nn.Module, inputs: Any) -> None:
    """Three batches and two steps, since the gradients of one batch only add up."""
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for turn in range(3):
        batch = tuple([(one + 3 * turn + distributed.get_rank()) % 41 for one in inputs])
        with wrapped.no_sync() if turn == 1 else nullcontext():
            wrapped(*batch).backward()
        if turn != 1:
            optimizer.step()
            optimizer.zero_grad(set_to_none=turn == 0)


class Either(nn.Module):
    """Each call uses one of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 6), nn.Linear(4, 6)

    def forward(self, x: torch.Tensor, way: int) -> torch.Tensor:
        made: torch.Tensor = (self.left, self.right, self.first)[way](self.first(x)).square().mean()
        return made


def leave_out(rank: int) -> None:
    """A process uses a sharded weight that the other does not use, then one of them uses none: means are
    those of DDP that looks for weights without gradients."""
    model, plain = twins(Either)
    x = torch.ones(2, 4, dtype=torch.float64) + rank
    split_on(2, model, (x, 0), {"left": 2})
    for network in (plain, model):
        wrapped = DistributedDataParallel(network, find_unused_parameters=True)
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        for ways in ((0, 1), (0, 2), (1, 2), (0, 0)):
            optimizer.zero_grad()
            wrapped(x, ways[rank]).backward()
            optimizer.step()
    assert_same(model, plain)


def main(rank: int, file: str) -> None:
    """Split, then split and pipelined: the weights are those of the plain model, in both processes."""
    torch.set_num_threads(1)
    with process_group(file, rank, 2):
        model, plain, _, inputs = tied_on_devices()
        with torch.no_grad():  # the first process's weights count
            for network in (model, plain):
                network.head.weight.add_(rank)
                network.middle.weight.add_(rank)
        for network in (plain, model):
            train(network, inputs)
        assert_same(model, plain)
        baechi.restore(model)
        wide, plain_wide = twins(Wide)
        pipelined(wide)
        for network in (plain_wide, wide):
            train(network, BATCH)
        assert_same(wide, plain_wide)
        copied = copy.deepcopy(model)
        split_on(2, copied, (words(2, 5), words(2, 5)), {"head": 2})
        train(copied, inputs)
        train(model, inputs)
        assert_same(copied, model)
        leave_out(rank)
        print("the same")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
