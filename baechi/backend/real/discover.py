"""The accelerators that this process sees, as a cluster."""

from dataclasses import replace
from itertools import permutations

from baechi.backend.real.driver import DRIVER, Driver
from baechi.backend.real.link_cache import kept_links
from baechi.backend.real.streams import device_behind
from baechi.errors import BaechiError
from baechi.records.cluster import HOST, Cluster
from baechi.records.datasheet import datasheet, known_kinds, usual_link
from baechi.records.device import Device, Link
from baechi.units import parse_bytes

RESERVE_BYTES = 512 * 2**20
"""Kept free on each GPU: the driver's context grows, and the allocator rounds up."""

_COPY_S = 5e-6
_NO_WAY = Link(latency_s=0.0, bytes_per_s=1e18)
"""Between the host and the CPU as a device nothing travels."""


def has_accelerator(driver: Driver = DRIVER) -> bool:
    """Whether this process sees an accelerator.

    Args:
        driver: answers questions about accelerators.
    """
    return driver.count() > 0


def discover(split: int = 1, cpu: int | str | None = None, driver: Driver = DRIVER) -> Cluster:
    """The visible accelerators with the memory that is free on each, less a reserve.

    Args:
        split: into how many devices to split each GPU.
        cpu: how much memory the CPU gives as a device beside them, bytes or text; None: it is none.
        driver: answers questions about accelerators.

    Returns:
        A cluster; a device whose model has a datasheet gets its rates and link from there. Links
        that were measured on these devices before are taken as they were.

    Raises:
        ValueError: `split` is below 1, or `cpu` is no size.
        BaechiError: torch sees no accelerator.
    """
    if isinstance(split, bool) or not isinstance(split, int) or split < 1:
        raise ValueError(f"split is {split!r}: a GPU is split into at least 1 device")
    if not has_accelerator(driver):
        raise BaechiError(
            "no accelerator is visible: use baechi.Cluster.virtual(2) to run on emulated devices, "
            "or baechi.Cluster.uniform(2, like='A100-80GB') to plan for others"
        )
    devices = [part for index in range(driver.count()) for part in _devices(index, split, driver)]
    kinds = {device.kind for device in devices}
    known = sorted(kinds & set(known_kinds()))
    link = usual_link(known[0]) if len(kinds) == 1 and known else Link()
    if cpu is not None:
        devices.append(Device("cpu", "CPU", **{**datasheet("CPU"), "memory_bytes": parse_bytes(cpu)}))
    guessed = Cluster(tuple(devices), link=link, links=_links(devices, driver))
    return replace(guessed, links={**guessed.links, **kept_links(guessed, driver)})


def _devices(index: int, split: int, driver: Driver) -> list[Device]:
    """A GPU, or its parts. Each part has the rates of the GPU: a kernel that runs alone gets all of it."""
    reported = driver.name(index)
    kind = next((k for k in known_kinds() if _matches(k, reported)), reported)
    rates = datasheet(kind) if kind in known_kinds() else {}
    rates["memory_bytes"] = max(0, driver.free_bytes(index) - RESERVE_BYTES) // split
    gpu = f"{driver.kind}:{index}"
    names = [gpu] if split == 1 else [f"{gpu}/{part}" for part in range(split)]
    return [Device(name=name, kind=kind, **rates) for name in names]


def _links(devices: list[Device], driver: Driver) -> dict[tuple[str, str], Link]:
    """Links that differ from the usual one of these GPUs: through the host, and within a GPU."""
    found: dict[tuple[str, str], Link] = {}
    for device in devices:
        way = _NO_WAY if device.name == "cpu" else Link()
        found[HOST, device.name] = found[device.name, HOST] = way
    for source, target in permutations(devices, 2):
        ends = [device_behind(device.name) for device in (source, target)]
        if ends[0] == ends[1]:
            if source.bytes_per_s:
                found[source.name, target.name] = Link(_COPY_S, source.bytes_per_s / 2)  # read and written
        elif "cpu" in (source.name, target.name):
            found[source.name, target.name] = Link()
        elif not driver.can_peer(int(ends[0].index), int(ends[1].index)):
            found[source.name, target.name] = replace(Link(), bytes_per_s=Link().bytes_per_s / 2, peer=False)
    return found


def _matches(kind: str, reported: str) -> bool:
    """`"A100-80GB"` is in `"NVIDIA A100-SXM4-80GB"`: each part of the kind is there."""
    return all(part in reported.replace(" ", "-").split("-") for part in kind.split("-"))
