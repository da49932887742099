"""Devices, and the link between them, as people describe them: by kind and number, by word."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from baechi.records import files
from baechi.records.datasheet import datasheet, known_kind, near_kinds, usual_link
from baechi.records.device import Device, Host, Link, Reserve, reserved_bytes
from baechi.units import parse_bytes

Size = int | str
Memory = Size | Sequence[Size] | None
LinkLike = Link | str | None

HOST = "host"

MOST_DEVICES = 1024
"""A cluster has so many at most: a step is one process's."""

PCIE = Link(latency_s=10e-6, bytes_per_s=25e9)
"""What PCIe 4 x16 delivers in one direction; the shipped clusters with `pcie` in their name have it."""

CUDA = "cuda"
"""In place of a list: all visible GPUs."""

NETWORK = Link(latency_s=20e-6, bytes_per_s=12.5e9)
"""Between hosts, unless something else is said: 100 Gb/s, after what a message takes over RDMA."""

_PART = re.compile(r"([0-9]+)\s*[xX]\s*(.+)")
_HOST = re.compile(r"\((.*)\)")
_COMMA = re.compile(r",(?![^()]*\))")
_GPU = re.compile(r"(?:cuda|gpus?):?(\d*)")
_RATE = re.compile(r"(.+)/s")


def read(
    text: object, memory: Memory = None, link: LinkLike = None
) -> tuple[tuple[Device, ...], Link, tuple[Host, ...]] | None:
    """The devices that a text lists, the link between any two, their hosts; see `Cluster.parse`."""
    if not isinstance(text, (str, Path)):
        kind = type(text).__name__
        raise TypeError(f"cluster is of type {kind}: it takes a baechi.Cluster or text such as '2xA100-80GB'")
    shipped = (files.profiles_folder() / "clusters" / f"{text}.json").exists()
    try:
        hosts = None if shipped else _kinds_by_host(str(text))
        if hosts is not None:
            return _in_hosts(hosts, memory, link)
        kinds = None if shipped else kinds_in(str(text))
        if kinds is not None:
            return devices_of(kinds, "device", memory), link_of(link, kinds), ()
    except ValueError as error:
        raise ValueError(f"cluster {str(text)!r}: {error}") from error
    if not shipped and not Path(text).exists() and (meant := _meant(str(text))):
        raise ValueError(f"cluster {str(text)!r} is no list of devices: {meant}")
    if memory is not None or link is not None:
        raise ValueError(f"cluster {str(text)!r} is no list of devices: it has its own memory and links")
    return None


def _meant(text: str) -> str:
    """What may be meant by a text that lists no devices and names no file; empty if nothing is near."""
    if (device := _GPU.fullmatch(text)) is not None:
        return (
            f"say one such as '1xA100-40GB', or '{CUDA}' for all visible GPUs "
            f"(CUDA_VISIBLE_DEVICES={device[1] or 0} in the environment leaves one)"
        )
    near = [f"'1x{kind}'" for kind in near_kinds(text)]
    return f"did you mean {' or '.join(near)}?" if near else ""


def kinds_in(text: str) -> list[str] | None:
    """The kind of each device that a text lists."""
    parts = [_PART.fullmatch(part.strip()) for part in text.split(",")]
    if not all(parts):
        return None
    found: list[str] = []
    for part in filter(None, parts):
        if not part[1].strip("0"):
            raise ValueError(f"{part[0]} is no device: a cluster needs at least 1 of each kind that it lists")
        if len(part[1]) > len(str(MOST_DEVICES)) or len(found) + int(part[1]) > MOST_DEVICES:
            raise ValueError(f"a cluster has at most {MOST_DEVICES:,} devices")
        found += [known_kind(part[2])] * int(part[1])
    return found


def _kinds_by_host(text: str) -> list[list[str]] | None:
    """The kinds of each host's devices, where a text lists hosts."""
    parts = [_PART.fullmatch(part.strip()) for part in _COMMA.split(text)]
    if "(" not in text or not all(parts):
        return None
    found: list[list[str]] = []
    for part in filter(None, parts):
        host = _HOST.fullmatch(part[2].strip())
        if host is None:
            raise ValueError(f"{part[0].strip()} is in no host, but others are: write 1x({part[0].strip()})")
        kinds = kinds_in(host[1])
        if kinds is None or not part[1].strip("0"):
            raise ValueError(f"{part[0].strip()} is no host: write such as 2x(4xA100-40GB)")
        if len(part[1]) > len(str(MOST_DEVICES)) or int(part[1]) * len(kinds) > MOST_DEVICES:
            raise ValueError(f"a cluster has at most {MOST_DEVICES:,} devices")
        found += [kinds] * int(part[1])
    return found


def _in_hosts(
    hosts: Sequence[Sequence[str]], memory: Memory, link: LinkLike
) -> tuple[tuple[Device, ...], Link, tuple[Host, ...]]:
    kinds = [kind for host in hosts for kind in host]
    names = [(f"host{h}", f"host{h}/device:{d}") for h, host in enumerate(hosts) for d in range(len(host))]
    devices = devices_of(kinds, "device", memory)
    named = tuple([replace(one, name=name) for one, (_, name) in zip(devices, names, strict=True)])
    made = tuple(
        [
            Host(f"host{h}", tuple([name for home, name in names if home == f"host{h}"]), link_of(None, host))
            for h, host in enumerate(hosts)
        ]
    )
    return named, NETWORK if link is None else link_of(link, kinds), made


def kinds_of(n: int | None, like: str | Sequence[str]) -> list[str]:
    """The kind of each of n devices."""
    count = (1 if isinstance(like, str) else len(like)) if n is None else n
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ValueError(f"a cluster of {count!r} devices: it needs at least 1")
    if count > MOST_DEVICES:
        raise ValueError(f"a cluster of {count:,} devices: it has at most {MOST_DEVICES:,}")
    kinds = [known_kind(kind) for kind in ([like] * count if isinstance(like, str) else like)]
    if len(kinds) != count:
        raise ValueError(f"like lists {len(kinds)} kinds for {count} devices")
    return kinds


def devices_of(
    kinds: Sequence[str], prefix: str, memory: Memory = None, reserve: Reserve = 0
) -> tuple[Device, ...]:
    """Devices of these kinds, with the rates of their datasheets."""
    sizes: Sequence[Size | None]
    if memory is None or isinstance(memory, (int, float, str)):
        sizes = [memory] * len(kinds)
    else:
        sizes = list(memory)
    if len(sizes) != len(kinds):
        raise ValueError(f"{len(sizes)} memory sizes for {len(kinds)} devices")
    devices = []
    for i, (kind, size) in enumerate(zip(kinds, sizes, strict=True)):
        sheet = datasheet(kind)
        whole_bytes = sheet["memory_bytes"] if size is None else parse_bytes(size)
        left_bytes = whole_bytes - reserved_bytes(whole_bytes, reserve)
        if left_bytes < 0:
            raise ValueError(f"a reserve of {reserve!r} is more than a device has: {whole_bytes} bytes")
        devices.append(Device(f"{prefix}:{i}", kind, **{**sheet, "memory_bytes": left_bytes}))
    return tuple(devices)


def link_of(link: LinkLike, kinds: Sequence[str]) -> Link:
    """The link between devices."""
    if isinstance(link, Link):
        return link
    if link is not None and not isinstance(link, str):
        raise TypeError(
            f"link is of type {type(link).__name__}: it takes a baechi.Link, 'pcie', 'nvlink' or '25GB/s'"
        )
    if link == "pcie":
        return PCIE
    usual = {kind: usual_link(kind) for kind in kinds}
    if link == "nvlink":
        without = [kind for kind, own in usual.items() if own.bytes_per_s < 4 * PCIE.bytes_per_s]
        if without:
            raise ValueError(
                f"{without[0]} is usually joined by PCIe: say link='pcie', or a rate such as '50GB/s'"
            )
    elif link is not None:
        rate = _RATE.fullmatch(link)
        if rate is None:
            raise ValueError(
                f"there is no link {link!r}: known are 'pcie', 'nvlink', and rates such as '25GB/s'"
            )
        return replace(PCIE, bytes_per_s=float(parse_bytes(rate[1])))
    return Link(
        latency_s=max([own.latency_s for own in usual.values()]),
        bytes_per_s=min([own.bytes_per_s for own in usual.values()]),
    )
