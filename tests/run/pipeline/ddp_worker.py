"""One of two processes that train a pipeline by DDP, each on batches of its own: `rank file`."""

import copy
import sys

import torch
from process_group import process_group
from run.pipeline.nets import WHERE, Blocks, noise, pipelined, seeded
from torch.nn.parallel import DistributedDataParallel


def main(rank: int, file: str) -> None:
    """Two backward passes of a pipeline and of the plain model leave the same gradients."""
    torch.set_num_threads(1)
    with process_group(file, rank, 2):
        x, y = noise(6, 6, seed=rank + 5), noise(6, 6, seed=rank + 9)
        model = seeded(Blocks)
        plain = copy.deepcopy(model)
        pipelined(model, (x, y), device_map=WHERE)
        for one in (model, plain):
            parallel = DistributedDataParallel(one)
            for _ in range(2):
                parallel(x, y)["loss"].backward()
        for weight, other in zip(model.parameters(), plain.parameters(), strict=True):
            assert weight.grad is not None and other.grad is not None
            assert torch.allclose(weight.grad, other.grad, rtol=0, atol=1e-12)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
