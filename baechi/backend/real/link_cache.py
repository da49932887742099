"""Measured links and launches, kept in the user's cache folder, so that each machine is measured once.

A file holds for the devices it was measured with: their names and identities in order (so it minds
`CUDA_VISIBLE_DEVICES`), and the versions of torch and of what drives them.
"""

import hashlib
import json
import logging
import os
import platform
from dataclasses import replace
from pathlib import Path

from baechi.backend.real.driver import DRIVER, Driver
from baechi.backend.real.streams import device_behind
from baechi.errors import RecordError
from baechi.records.cluster import Cluster

logger = logging.getLogger(__name__)

_FORM = "latency without the host's call, torch's part of the host"
"""What is kept; files of another form are not found."""


def cache_folder() -> Path:
    """`$XDG_CACHE_HOME/baechi`, or `~/.cache/baechi`."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "baechi"


def cache_file(cluster: Cluster, driver: Driver = DRIVER) -> Path:
    """Where the links of a cluster's devices are kept."""
    facts = [_FORM, driver.version(), platform.machine()]
    for name in cluster.names:
        device = device_behind(name)
        known = driver.identity(device.index) if device.index is not None else str(os.cpu_count())
        facts += [name, known]
    digest = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
    return cache_folder() / f"links-{digest}.json"


def keep(cluster: Cluster, driver: Driver = DRIVER) -> Path:
    """Keep what was measured of a cluster for the next `Cluster.discover` of the same devices."""
    path = cache_file(cluster, driver)
    path.parent.mkdir(parents=True, exist_ok=True)
    cluster.save(path)  # another process may measure, or read, at the same time
    return path


def with_kept(cluster: Cluster, driver: Driver = DRIVER) -> Cluster | None:
    """A cluster with the links and the time of a launch that were kept for its devices."""
    path = cache_file(cluster, driver)
    if not path.is_file():
        return None
    try:
        kept = Cluster.load(path)
    except (RecordError, OSError) as error:
        logger.warning("what was measured of these devices is not read: %s", error)
        return None
    logger.info("links as measured before: %s", path)
    return replace(cluster, links={**cluster.links, **kept.links}, launch_s=kept.launch_s, host=kept.host)
