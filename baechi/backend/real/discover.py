"""The accelerators that this process sees, as a cluster."""

from dataclasses import replace
from itertools import permutations

from baechi.backend.real.driver import DRIVER, Driver
from baechi.backend.real.link_cache import with_kept
from baechi.backend.real.streams import device_behind
from baechi.errors import BaechiError
from baechi.records.cluster import HOST, Cluster
from baechi.records.datasheet import datasheet, known_kinds, usual_link
from baechi.records.device import RESERVE, Device, HostCosts, Link, Reserve, reserved_bytes
from baechi.units import parse_bytes

_COPY_S = 5e-6
_SAY_NOTHING = {"NVIDIA", "TESLA", "GEFORCE", "SXM", "SXM2", "SXM3", "SXM4", "SXM5", "HBM2", "HBM3", "HBM3E"}
"""Parts of a name that tell no device from another one with the same other parts."""
_NO_WAY = Link(latency_s=0.0, bytes_per_s=1e18)
"""Between the host and the CPU as a device nothing travels."""


def has_accelerator(driver: Driver = DRIVER) -> bool:
    """Whether this process sees an accelerator."""
    return driver.count() > 0


def discover(
    split: int = 1, cpu: int | str | None = None, *, reserve: Reserve = RESERVE, driver: Driver = DRIVER
) -> Cluster:
    """The visible accelerators with the memory that is free on each, less a reserve."""
    if isinstance(split, bool) or not isinstance(split, int) or split < 1:
        raise ValueError(f"split is {split!r}: a GPU is split into at least 1 device")
    if not has_accelerator(driver):
        raise BaechiError(
            "no accelerator is visible: use baechi.Cluster.virtual(2) to run on emulated devices, "
            "or baechi.Cluster.uniform(2, like='A100-80GB') to plan for others"
        )
    devices = [part for index in range(driver.count()) for part in _devices(index, split, reserve, driver)]
    kinds = {device.kind for device in devices}
    known = sorted(kinds & set(known_kinds()))
    link = usual_link(known[0]) if len(kinds) == 1 and known else Link()
    if cpu is not None:
        devices.append(Device("cpu", "CPU", **{**datasheet("CPU"), "memory_bytes": parse_bytes(cpu)}))
    links, host = _links(devices, driver), HostCosts.usual()
    guessed = Cluster(tuple(devices), link=link, links=links, host=host)
    return with_kept(guessed, driver) or guessed


def _devices(index: int, split: int, reserve: Reserve, driver: Driver) -> list[Device]:
    """A GPU, or its parts. Each part has the rates of the GPU: a kernel that runs alone gets all of it."""
    reported = driver.name(index)
    kind = next((k for k in known_kinds() if is_kind(k, reported)), reported)
    rates = datasheet(kind) if kind in known_kinds() else {}
    driver.warm_up(index)
    left_bytes = driver.free_bytes(index) - reserved_bytes(driver.total_bytes(index), reserve)
    rates["memory_bytes"] = max(0, left_bytes) // split
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


def is_kind(kind: str, reported: str) -> bool:
    """Whether a datasheet is that of a device.

    `"A100-80GB"` is `"NVIDIA A100-SXM4-80GB"`, and not `"NVIDIA A100 80GB PCIe"`: each part of the kind is
    there, and nothing else that makes another device (a bus, `Laptop`, a part by MIG).
    """
    parts = set(reported.upper().replace(" ", "-").split("-"))
    wanted = set(kind.upper().split("-"))
    return wanted <= parts and parts - wanted <= _SAY_NOTHING
