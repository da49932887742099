"""One of two processes that train a distributed model by DDP, each on batches of its own: `rank file`."""

import sys
from contextlib import nullcontext
from typing import Any

import torch
from process_group import process_group
from run.every_way import TURNS, assert_equal, batch, left_by, rig
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from baechi.errors import BaechiError


def train(model: nn.Module) -> list[Any]:
    """Three batches and two steps, since the gradients of one batch only add up; what came of them."""
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1, momentum=0.9)
    seen: list[Any] = []
    for turn in range(3):
        with wrapped.no_sync() if turn == 1 else nullcontext():
            out = wrapped(batch(seed=10 * turn + distributed.get_rank()))
            out.pow(2).mean().backward()
        if turn != 1:
            optimizer.step()
            optimizer.zero_grad()
        seen.append(out.detach())
    return [*seen, left_by(model)]


def refused_inside() -> None:
    """A wrapper that was made outside is not called inside."""
    model, cluster = TURNS[0][0].distribute(rig, batch)
    wrapped = DistributedDataParallel(model)
    with cluster:
        try:
            wrapped(batch())
        except BaechiError as error:
            print(error)


def main(rank: int, file: str) -> None:
    """Train the plain model, then the distributed one by each launcher: they are the same."""
    torch.set_num_threads(1)
    with process_group(file, rank, 2):
        expected = train(rig())
        for way in TURNS[0]:
            model, _ = way.distribute(rig, batch)
            assert_equal(expected, train(model))
            print("the same", way)
        refused_inside()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
