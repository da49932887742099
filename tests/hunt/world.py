"""Where models run: emulated devices, or those of the test accelerator."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import baechi


@dataclass(frozen=True)
class World:
    """Devices.

    Args:
        cluster: so many of them.
        home: brings values, or the plain model, to where the caller has them.
        draws: whether random numbers are those of one device.
    """

    cluster: Callable[[int], baechi.Cluster]
    home: Callable[[Any], Any]
    draws: bool = True


def _emulated(count: int) -> baechi.Cluster:
    cluster = baechi.Cluster.virtual(count, link=baechi.Link(latency_s=1e-9, bytes_per_s=1e15))
    return replace(cluster, launch_s=1e-9)  # so that it is worth to spread even the smallest layers


def _as_it_is(value: Any) -> Any:
    return value


EMULATED = World(_emulated, _as_it_is)
