"""A cluster of this machine's accelerators: what the driver says of them, and what was measured, once."""

import logging
from dataclasses import replace

from baechi.backend import unwatched
from baechi.backend.real.discover import discover
from baechi.backend.real.driver import DRIVER
from baechi.backend.real.link_cache import keep, with_kept
from baechi.measure.copies import links
from baechi.measure.in_turn import with_torch_measured
from baechi.records.cluster import Cluster
from baechi.records.device import RESERVE, HostCosts, Reserve

logger = logging.getLogger(__name__)

_SIZES, _ROUNDS = (2**12, 2**18, 2**22, 2**24), 3
"""Of copies: few, so that eight GPUs take about a second."""


def discovered(
    split: int = 1, cpu: int | str | None = None, *, reserve: Reserve = RESERVE, measure: bool = True
) -> Cluster:
    """The visible accelerators, as `Cluster.discover` has them."""
    cluster = discover(split, cpu, reserve=reserve)
    if not measure or with_kept(cluster) is not None:
        return cluster
    full = [device.name for device in cluster.devices if device.memory_bytes < 2 * max(_SIZES)]
    if full:
        logger.warning("links are guessed, not measured: %s has no memory left for a copy", ", ".join(full))
        return cluster
    with unwatched():
        measured = links(cluster, sizes=_SIZES, rounds=_ROUNDS)
        host = with_torch_measured(HostCosts.usual(), rounds=_ROUNDS)
    # a launch was measured from Python: what torch takes of it is charged for each operator
    measured = replace(measured, host=host, launch_s=max(0.0, measured.launch_s - host.operator_s))
    DRIVER.empty_cache()
    try:
        keep(measured)
    except OSError as error:
        logger.warning("measured links cannot be kept for the next time: %s", error)
    return measured
