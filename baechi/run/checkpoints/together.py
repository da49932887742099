"""What all ranks do of saving and loading; in one process nothing."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import nn

from baechi.backend.ranks.devices import RankDevices
from baechi.backend.ranks.wires import Wires
from baechi.errors import RankError
from baechi.run.binding import binding_of
from baechi.torchlib.modules.intercept import is_replaced


def wires_of(model: nn.Module) -> Wires | None:
    """The ways between the ranks that have a model; None if it is in one process."""
    binding = binding_of(model)
    backend = None if binding is None else binding.runtime.backend
    return backend.wires if isinstance(backend, RankDevices) else None


def is_plain(model: nn.Module) -> bool:
    """Whether a model was not distributed, and does not wait for it."""
    return binding_of(model) is None and not is_replaced(model)


def alike(ways: Wires | None) -> AbstractContextManager[None]:
    """Within this context, in which nothing is sent, an error of one rank is raised on all."""
    return nullcontext() if ways is None else ways.alike()


def agree(ways: Wires | None, what: str, mine: Any) -> None:
    """Raise on all ranks if they were given something else."""
    said = [mine] if ways is None else ways.gather_all(mine)
    for rank, one in enumerate(said):
        if one != said[0]:
            raise RankError(
                f"rank {rank} {what} {one}, and rank 0 {said[0]}: all ranks have to do the same", on_all=True
            )
