"""The ways in which each model is tried."""

from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

import baechi

PLACERS = ("random:1", "random:2", "m-etf", "auto")
REORDER: tuple[Literal["host", False], ...] = ("host", False)
DEVICES = 3


@dataclass(frozen=True)
class Way:
    """A placer, and who launches what waits."""

    placer: str
    reorder: Literal["host", False]

    def __str__(self) -> str:
        return f"{self.placer} {self.reorder or 'off'}"


WAYS = [Way(*row) for row in product(PLACERS, REORDER)]


def cluster(devices: int = DEVICES) -> baechi.Cluster:
    """Devices so fast to reach that it is worth to spread even the smallest models."""
    near = baechi.Cluster.virtual(devices, link=baechi.Link(latency_s=1e-9, bytes_per_s=1e15))
    return replace(near, launch_s=1e-9)
