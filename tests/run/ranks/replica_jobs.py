"""Replicas over ranks, and the plain model on the whole batch."""

from datetime import timedelta
from typing import Any

import torch
from run.ranks.jobs import EXACT
from run.ranks.models import built
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer

import baechi
from baechi.records.pipeline import Pipeline
from baechi.run.programs.averages import Averages
from baechi.torchlib.elsewhere import ElsewhereTensor
from baechi.torchlib.private.groups import default_store

STEPS = 3


def _optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), 0.01)


def part_of(inputs: dict[str, Any], index: int, number: int) -> dict[str, Any]:
    """The rows of a replica."""
    return {name: one.chunk(number)[index] for name, one in inputs.items()}


def _steps(model: nn.Module, optimizer: torch.optim.Optimizer, data: list[Any]) -> list[tuple[float, float]]:
    seen = []
    for inputs in data:
        optimizer.zero_grad()
        result = model(**inputs)
        loss = result["loss"] if isinstance(result, dict) else result
        (loss * 0.5).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        seen.append((loss.item(), norm.item()))
    return seen


def whole(name: str) -> dict[str, Any]:
    """The plain model, trained on whole batches by torch alone."""
    model, batch = built(name)
    data = [batch() for _ in range(STEPS)]
    seen = _steps(model, _optimizer(model), data)
    return {"seen": seen, "weights": {key: one.detach().clone() for key, one in model.state_dict().items()}}


def _replicate(
    model: nn.Module,
    batch: dict[str, Any],
    text: str,
    optimizer: torch.optim.Optimizer,
    replicas: int,
    **options: Any,
) -> None:
    """Distribute a model by a pipeline's text, in replicas."""
    options |= {"loss_weights": "rows", "compile": EXACT, "optimizer": optimizer, "replicas": replicas}
    baechi.distribute(model, batch, plan=Pipeline.from_json(text), **options)


def replicated(name: str, text: str, replicas: int, folder: str | None = None) -> dict[str, Any]:
    """A replica of the model, trained on its rows of the same batches."""
    index, number = baechi.replica(replicas)
    model, batch = built(name)
    data = [part_of(batch(), index, number) for _ in range(STEPS)]
    optimizer = _optimizer(model)
    if index:  # the first replica's weights count
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(1)
    _replicate(model, data[0], text, optimizer, replicas, coupled="accept")
    assert baechi.replica() == (index, number)
    seen = _steps(model, optimizer, data)
    here = {key: one for key, one in model.state_dict().items() if not isinstance(one, ElsewhereTensor)}
    found = {
        "seen": seen,
        "weights": {key: one.detach().clone() for key, one in here.items()},
        "index": index,
    }
    if folder is not None:
        baechi.save(model, folder, optimizer=optimizer, step=STEPS)
        found["whole"] = len(baechi.whole_state(model))
    return found


def distributed(
    text: str, replicas: int, **options: Any
) -> tuple[nn.Module, torch.optim.Optimizer, list[dict[str, Any]]]:
    """Two towers, and a replica's rows of batches."""
    index, number = baechi.replica(2)
    model, batch = built("towers")
    data = [part_of(batch(), index, number) for _ in range(STEPS)]
    optimizer = _optimizer(model)
    change = options.pop("change", None)
    if change is not None:
        change(data)
    _replicate(model, data[0], text, optimizer, replicas)
    return model, optimizer, data


def unlike(what: str, text: str) -> Any:
    """Let the last process be unlike the others."""
    last = torch.distributed.is_initialized() and torch.distributed.get_rank() == 3
    replicas = 3 if what == "uneven" else 4 if what == "numbers" and last else 2

    def change(data: list[dict[str, Any]]) -> None:
        if last and what == "batch":
            data[0] = {name: one[:4] for name, one in data[0].items()}
        if last and what == "labels":
            data[1]["y"] = (data[1]["y"] + 1) % 11

    model, optimizer, data = distributed(text, replicas, change=change)
    if what == "labels" and baechi.replica().own == 0:
        return None
    return _steps(model, optimizer, data[1:2])


def failing(text: str) -> Any:
    """Let the last rank fail in the second step."""
    model, optimizer, data = distributed(text, 2)
    _steps(model, optimizer, data[:1])
    if torch.distributed.get_rank() == 3:

        def refuse(*_: Any) -> None:
            raise ValueError("no such token")

        from baechi.run.ranks.loop import RankLoop

        RankLoop._keep = refuse  # type: ignore[method-assign]
    _steps(model, optimizer, data[1:])


def zero(text: str) -> dict[str, Any]:
    """Train with the optimizer's state divided over replicas."""
    model, _, data = distributed(text, 2)
    here = baechi.replica().parameters(model)
    optimizer = ZeroRedundancyOptimizer(
        here, optimizer_class=torch.optim.AdamW, process_group=baechi.replica().group, lr=0.01
    )
    _steps(model, optimizer, data)
    weights = {key: one for key, one in model.state_dict().items() if not isinstance(one, ElsewhereTensor)}
    return {
        "weights": {key: one.detach().clone() for key, one in weights.items()},
        "states": len(optimizer.optim.state),
        "weights_here": len(here),
    }


def begun_early(text: str) -> dict[str, Any]:
    """Let the first stage wait, after its last backward, until the last one adds up its gradients."""
    model, optimizer, data = distributed(text, 2)
    store, own = default_store(), torch.distributed.get_rank()
    stage = own % 2
    before = Averages.begin

    def begin(self: Averages, *args: Any) -> None:
        if stage == 0:
            store.wait([f"begun/{own + 1}"], timedelta(seconds=30))
        before(self, *args)
        if stage == 1:
            store.set(f"begun/{own}", "")

    Averages.begin = begin  # type: ignore[method-assign]
    try:
        _steps(model, optimizer, data)
    finally:
        Averages.begin = before  # type: ignore[method-assign]
    return {"stage": stage}
