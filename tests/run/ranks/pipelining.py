"""The same chain by `torch.distributed.pipelining` and by baechi: losses, gradients, and the host's time."""

import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from run.ranks.models import Residual
from torch import Tensor, distributed, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

import baechi
from baechi.torchlib.elsewhere import ElsewhereTensor

BLOCKS, MICROBATCHES, ROWS, WIDTH = 6, 4, 16, 8
STEPS, COUNTED = 3, 12
RATE = 0.1
ORDERS = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}


class Trained(NamedTuple):
    """What came of a few steps on one rank.

    Args:
        losses: by step; none where they are not known.
        grads: by step and weight that is here.
        task_s: the processor time of a task, the least of several steps.
    """

    losses: list[float]
    grads: list[dict[str, Tensor]]
    task_s: float


def built() -> tuple[nn.Sequential, list[tuple[Tensor, Tensor]]]:
    """The chain, and batches with their targets."""
    torch.manual_seed(3)
    model = nn.Sequential(*[Residual() for _ in range(BLOCKS)]).double()
    rows = [torch.randn(2, ROWS, WIDTH, dtype=torch.float64) for _ in range(STEPS)]
    return model, [(pair[0], pair[1]) for pair in rows]


def cut(ranks: int) -> dict[str, int]:
    """Which rank has each block: as many each."""
    return {str(block): block * ranks // BLOCKS for block in range(BLOCKS)}


def plain() -> Trained:
    """The whole batch, one process, no library."""
    model, data = built()

    def step(x: Tensor, target: Tensor) -> float:
        loss = nn.functional.mse_loss(model(x), target)
        loss.backward()
        return loss.item()

    return _steps(model, data, step)


def by_baechi(order: str) -> Trained:
    """Over ranks with these cuts."""
    model, data = built()
    baechi.distribute(
        model,
        {"input": data[0][0], "target": data[0][1]},
        device_map=cut(int(os.environ["WORLD_SIZE"])),
        microbatches=MICROBATCHES,
        order=order,  # type: ignore[arg-type]
        loss=nn.functional.mse_loss,
    )

    def step(x: Tensor, target: Tensor) -> float:
        found: Tensor = model(x, target=target)
        found.backward()
        return found.item()

    return _steps(model, data, step)


def by_torch(order: str) -> Trained:
    """Over ranks by torch's own pipelines."""
    model, data = built()
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    for block, place in cut(ranks).items():
        if place != rank:
            model[int(block)] = nn.Identity()  # so that names stay
    stage = PipelineStage(model, rank, ranks, torch.device("cpu"))
    schedule = ORDERS[order](stage, MICROBATCHES, loss_fn=nn.functional.mse_loss)

    def step(x: Tensor, target: Tensor) -> float:
        losses: list[Tensor] = []
        given = [x] if rank == 0 else []
        if rank == ranks - 1:
            schedule.step(*given, target=target, losses=losses)
            return torch.stack(losses).mean().item()
        schedule.step(*given)
        return float("nan")

    return _steps(model, data, step)


def both(order: str) -> tuple[Trained, Trained]:
    """One after the other, in the same processes."""
    return by_baechi(order), by_torch(order)


def _steps(
    model: nn.Module, data: list[tuple[Tensor, Tensor]], step: Callable[[Tensor, Tensor], float]
) -> Trained:
    losses, grads = [], []
    for x, target in data:
        losses.append(step(x, target))
        here = {
            name: weight
            for name, weight in model.named_parameters()
            if not isinstance(weight, ElsewhereTensor)
        }
        found = {name: weight.grad for name, weight in here.items()}
        assert all(grad is not None for grad in found.values())
        grads.append({name: grad.clone() for name, grad in found.items() if grad is not None})
        with torch.no_grad():
            for weight in here.values():
                weight.sub_(weight.grad, alpha=RATE)  # type: ignore[arg-type]
        model.zero_grad()
    spent_s = []
    for _ in range(COUNTED):
        begun_s = time.process_time()
        step(*data[0])
        spent_s.append(time.process_time() - begun_s)
        model.zero_grad()
    return Trained(losses, grads, min(spent_s) / (2 * MICROBATCHES))


def hosts_time(order: str) -> dict[str, Any]:
    """The processor time of a task, in microseconds, by who did it: each twice, in turns."""
    ours, torchs = both(order)
    again, more = both(order)
    return {
        "rank": os.environ.get("RANK"),
        "baechi_us": 1e6 * min(ours.task_s, again.task_s),
        "torch_us": 1e6 * min(torchs.task_s, more.task_s),
    }
