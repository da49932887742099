"""Save a run: weights, optimizer, scheduler, step and random numbers, over any number of processes."""

from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from baechi.run.checkpoints.background import Saving, begin_writing, wait_for_latest
from baechi.run.checkpoints.by_name import model_state, optimizer_state
from baechi.run.checkpoints.randomness import random_state
from baechi.run.checkpoints.together import agree, alike, wires_of
from baechi.run.checkpoints.writer import write
from baechi.run.guards.models import refuse_foreign


class HasState(Protocol):
    """What has a state that can be saved and put back: a scheduler of learning rates, a loader."""

    def state_dict(self) -> Any:
        """Its state."""

    def load_state_dict(self, state_dict: Any) -> Any:
        """Put a state back."""


def save(
    model: nn.Module,
    folder: str | Path,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    scheduler: HasState | None = None,
    step: int = 0,
    wait: bool = True,
) -> Saving | None:
    """Save a run into a folder, in the format of `torch.distributed.checkpoint`, by names.

    Any plan, any number of processes, and plain torch read it. Over ranks all of them call this, and each
    writes its own weights. A checkpoint that the folder has is replaced when the new one is complete; after
    an error, a full disk or a kill it is as it was. Other files of the folder stay.

    Args:
        model: a distributed model, or a plain one.
        folder: where to. Over several hosts it is one that all of them share.
        optimizer: of this model; state is saved by names of weights.
        scheduler: a scheduler, or anything else with `state_dict`; over ranks that of rank 0 counts.
        step: how many steps were taken; `resume` returns it.
        wait: whether to return when it is written. False copies all to the host, and a thread writes it while
            you train on. The next `save` waits for it, and so does the end of the process.

    Returns:
        None; without `wait` what has `done()`, and `result()`, which waits and raises what went wrong.

    Raises:
        CheckpointError: it could not be written; on all ranks, and they stay together.
        RankError: ranks were given other folders or steps, or one was lost.
        ValueError: the optimizer trains what is no parameter of the model.
    """
    refuse_foreign(model)
    ways, path = wires_of(model), Path(folder).absolute()
    has = [name for name, one in (("optimizer", optimizer), ("scheduler", scheduler)) if one is not None]
    agree(ways, "saves", f"step {step} to {path} with {', '.join(has) or 'weights alone'}")
    with alike(ways):
        state: dict[str, Any] = {
            "model": model_state(model),
            "random": random_state(model),
            "step": int(step),
        }
        if optimizer is not None:
            state["optimizer"] = optimizer_state(model, optimizer)
        if scheduler is not None:
            state["scheduler"] = (scheduler.state_dict(),)  # in a tuple: torch would change keys of dicts
    if ways is not None and ways.replica:  # which has what the first one has
        state = {}
    if not wait:
        return begin_writing(state, path, in_ranks=ways is not None)
    wait_for_latest()
    if ways is None:
        write(state, path)
    else:
        ways.all_do(lambda group: write(state, path, group))
    return None
