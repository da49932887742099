"""What is wrong with what was given for a cluster: its names, its links, its limits."""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from baechi.errors import RecordError
from baechi.records.described.devices import HOST, MOST_DEVICES, Size
from baechi.records.device import Device, Host, Link
from baechi.units import parse_bytes

logger = logging.getLogger(__name__)


def faults_in(names: Sequence[str], links: Iterable[tuple[str, str]]) -> list[str]:
    """What is wrong with a cluster's names."""
    faults = [] if names else ["it has no devices"]
    if len(names) > MOST_DEVICES:
        faults.append(f"it has {len(names):,} devices: at most {MOST_DEVICES:,} are planned for")
    faults += [f"two devices are named {name!r}" for name, count in Counter(names).items() if count > 1]
    if HOST in names:
        faults.append(f"a device is named {HOST!r}, which is the host's name")
    known = {*names, HOST}
    ends = [end for pair in links for end in pair if end not in known]
    return faults + [f"a link names {end!r}, no device of it" for end in ends]


def host_faults(names: Sequence[str], hosts: Sequence[Host]) -> list[str]:
    """What is wrong with the hosts of a cluster."""
    if not hosts:
        return []
    found = Counter([name for host in hosts for name in host.devices])
    faults = [
        f"two hosts are named {name!r}" for name, n in Counter([h.name for h in hosts]).items() if n > 1
    ]
    faults += [f"a host has {name!r}, no device of the cluster" for name in found.keys() - set(names)]
    faults += [f"{name!r} is in two hosts" for name, count in found.items() if count > 1]
    return faults + [f"{name!r} is in no host, but others are" for name in names if name not in found]


def links_among(
    devices: Sequence[Device], links: Mapping[tuple[str, str], Link]
) -> dict[tuple[str, str], Link]:
    """The links whose ends are among these devices, or the host."""
    kept = {HOST, *[device.name for device in devices]}
    return {ends: link for ends, link in links.items() if set(ends) <= kept}


def hosts_of(devices: Sequence[Device], hosts: Sequence[Host]) -> tuple[Host, ...]:
    """The hosts of some devices, with these alone."""
    kept = {device.name for device in devices}
    left = [(host, tuple([name for name in host.devices if name in kept])) for host in hosts]
    return tuple([replace(host, devices=names) for host, names in left if names])


def limited(devices: Sequence[Device], max_memory: Mapping[int | str, Size]) -> tuple[Device, ...]:
    """The same devices with other memory; one that is given 0 is left out."""
    names = [device.name for device in devices]
    if not isinstance(max_memory, Mapping):
        raise RecordError(
            f"max_memory is {max_memory!r}: it takes sizes by device, as in {{{names[0]!r}: '10GiB'}}"
        )
    faults: list[str] = []
    sizes: dict[str, int] = {}
    for key, size in max_memory.items():
        index = key if isinstance(key, int) and not isinstance(key, bool) else -1
        name = names[index] if 0 <= index < len(names) else key
        if name not in (*names, "cpu"):
            faults.append(f"{key!r} is no device: there are {', '.join(names)}")
            continue
        if name in sizes:
            faults.append(f"the memory of {name} is given twice")
        if name not in names:
            logger.warning("max_memory of %r: the CPU is no device here, so nothing is placed on it", name)
        try:
            sizes[str(name)] = parse_bytes(size)
        except (TypeError, ValueError) as error:
            faults.append(f"the memory of {name}: {error}")
    left = [device for device in devices if sizes.get(device.name) != 0]
    if not left and not faults:
        faults.append("it leaves no device")
    if faults:
        raise RecordError("max_memory does not match the cluster:", tuple(faults))
    return tuple(
        [replace(device, memory_bytes=sizes.get(device.name, device.memory_bytes)) for device in left]
    )
