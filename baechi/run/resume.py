"""Go on with a run that was saved."""

from pathlib import Path

import torch
from torch import nn

from baechi.errors import CheckpointError
from baechi.run.checkpoints.by_name import load_optimizer, optimizer_from
from baechi.run.checkpoints.randomness import set_random_state
from baechi.run.checkpoints.reader import Stored, is_stored
from baechi.run.checkpoints.together import agree, alike, wires_of
from baechi.run.guards.models import refuse_foreign
from baechi.run.load import fill
from baechi.run.save import HasState


def resume(
    model: nn.Module,
    folder: str | Path,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    scheduler: HasState | None = None,
) -> int:
    """Go on where `save` was called: weights, optimizer, scheduler and random numbers are as they were then.

    Over ranks all of them call this; their number and the plan may be others than when it was saved. The
    random numbers of Python and numpy are not in it.

    Args:
        model: a distributed model, or a plain one; weights on `meta` of a distributed one get their memory.
        folder: a folder that `save` wrote, or `torch.distributed.checkpoint` with the same names.
        optimizer: of this model, new or used.
        scheduler: as `save` was given.

    Returns:
        How many steps were taken; 0, and nothing is changed, if the folder has no checkpoint.

    Raises:
        CheckpointError: it does not match the model or optimizer, lacks what is asked for, or has an
            optimizer or scheduler that is not asked for. Nothing is changed.
        RankError: another rank failed, or not all of them see the folder.
    """
    refuse_foreign(model)
    ways, path = wires_of(model), Path(folder)
    has = "a checkpoint" if is_stored(path) else "no checkpoint"
    agree(ways, "sees", f"{has} in {path.absolute()}")
    if not is_stored(path):
        return 0
    with alike(ways):
        stored = Stored(path)
        _check_parts(stored, optimizer=optimizer is not None, scheduler=scheduler is not None)
        state = None if optimizer is None else optimizer_from(model, optimizer, stored)
        loose = stored.read([], dict.fromkeys(["scheduler", "step", "random"]))
        fill(model, stored, strict=True)
        if optimizer is not None and state is not None:
            load_optimizer(optimizer, state)
        if scheduler is not None:
            scheduler.load_state_dict(loose["scheduler"][0])
        set_random_state(model, loose.get("random", {}))
    return int(loose.get("step", 0))


def _check_parts(stored: Stored, **asked: bool) -> None:
    for part, is_asked in asked.items():
        if is_asked and part not in stored.parts:
            raise CheckpointError(
                f"{stored.path} has no {part}: its parts are {', '.join(stored.parts)}. Leave {part}= out"
            )
        if part in stored.parts and not is_asked:
            raise CheckpointError(
                f"{stored.path} was saved with {part}=, so give it here, too; baechi.load reads weights alone"
            )
