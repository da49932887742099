"""`with cluster:` of real devices: steps are timed, so that `last_step` has something to tell."""

from typing import Any

from baechi.backend.real.streams import is_here
from baechi.errors import BaechiError
from baechi.records.cluster import Cluster

_open: list["Timing"] = []


class Timing:
    """On while steps are timed: events around each layer and transfer, and a wait before each step.

    Args:
        cluster: real devices of this machine.

    Raises:
        BaechiError: devices that are not here.
    """

    def __init__(self, cluster: Cluster) -> None:
        away = [name for name in cluster.names if not is_here(name)]
        if away:
            raise BaechiError(
                f"with cluster: runs on devices, and {', '.join(away)} is not in this machine: this cluster "
                "is to plan for. Cluster.virtual(...) emulates one, Cluster.discover() finds what is here"
            )

    def __enter__(self) -> "Timing":
        _open.append(self)
        return self

    def __exit__(self, *exception: Any) -> None:
        _open.pop()


def is_on() -> bool:
    """Whether steps are timed."""
    return bool(_open)
