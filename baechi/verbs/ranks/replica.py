"""Which replica this process belongs to: what samplers of data have to know."""

from typing import Any, NamedTuple

from torch import nn

from baechi.backend.ranks.rendezvous import place_of_replica, wires
from baechi.torchlib.elsewhere import ElsewhereTensor


class Replica(NamedTuple):
    """A replica: `own, number = baechi.replica()`.

    Args:
        own: which it is, from 0.
        number: how many there are.
    """

    own: int
    number: int

    @property
    def group(self) -> Any:
        """Torch's group of the processes that have the same part of the model, one of each replica.

        It is there after `distribute`, and None without replicas.
        """
        return wires().across if self.number > 1 else None

    def parameters(self, model: nn.Module) -> list[nn.Parameter]:
        """A model's parameters that have their values in this process; in one process all of them."""
        return [one for one in model.parameters() if not isinstance(one, ElsewhereTensor)]


def replica(replicas: int | None = None) -> Replica:
    """Which replica this process belongs to, and how many there are: each has batches of its own.

    Args:
        replicas: how many there will be; needed before `distribute(..., replicas=...)`, which the first
            batch is made for. Unless given, as many as the last model has.

    Returns:
        Its index and their number; `(0, 1)` in one process. `.group` and `.parameters(model)` are for torch's
        tools: the processes with the same part of a model, and that part.

    Raises:
        ValueError: the processes cannot be divided so.
    """
    return Replica(*place_of_replica(replicas))
