"""Links between the processes that torchrun started: messages there and back, one pair at a time.

rank 0   [message ─▶            ]      half of the time there and back, for several sizes; then a line through
rank 1            [ ─▶ message ]      them, as for copies (`copies.fit`)
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, groupby
from statistics import median

import torch

from baechi.backend.ranks.rendezvous import divide, own_device, wires
from baechi.backend.ranks.wires import Wires
from baechi.backend.real.discover import discover
from baechi.errors import RankError
from baechi.measure.copies import fit
from baechi.records.cluster import Cluster
from baechi.records.datasheet import datasheet
from baechi.records.device import Device, Host, Link
from baechi.records.rank_names import name_of
from baechi.torchlib.host_memory import free_host_bytes

SIZES = tuple([4**power for power in range(5, 13)])
"""Bytes, from a kibibyte to 16 mebibytes."""


def rank_links(*, sizes: Sequence[int] = SIZES, rounds: int = 5) -> Cluster:
    """Measure the links between all processes; each of them calls this, and each has the result."""
    divide(1)  # whatever replicas there were: all processes are measured
    ways, own = wires(), own_device()
    with ways.guarded():
        devices = ways.gather_all((ways.host, _device(ways, own)))
        pairs = list(combinations(range(ways.size), 2))
        mine: dict[tuple[int, int], Link] = {}
        for first, second in pairs:  # one at a time: others wait for its end
            if ways.rank in (first, second):
                other = second if ways.rank == first else first
                times_s = [_message_s(ways, other, size, rounds, own) for size in sizes]
                if ways.rank == first:
                    mine[first, second] = fit(sizes, times_s)
            ways.agree_on(len(pairs), "pairs to measure")
        found: dict[tuple[int, int], Link] = {}
        for measured in ways.gather_all(mine):
            found |= measured
    return _cluster([device for _, device in devices], [host for host, _ in devices], found)


def _device(ways: Wires, own: torch.device) -> Device:
    name = name_of(ways.rank, str(own))
    if own.type == "cpu":
        return Device(name, "CPU", **{**datasheet("CPU"), "memory_bytes": free_host_bytes() // ways.size})
    return replace(discover().device(str(own)), name=name)


def _message_s(ways: Wires, other: int, size: int, rounds: int, own: torch.device) -> float:
    """Half of what a message takes there and back; the first round opens the way."""
    flat, found = torch.zeros(size, dtype=torch.uint8, device=own), list[float]()
    for _ in range(rounds + 1):
        begun_s = time.perf_counter()
        for sender in sorted((ways.rank, other)):
            if sender == ways.rank:
                ways.send(flat, other, backward=False)
                ways.wait_for_sends()
            else:
                ways.wait(ways.receive(flat, other, backward=False), other)
        if own.type != "cpu":
            torch.accelerator.synchronize(own)
        found.append((time.perf_counter() - begun_s) / 2)
    return median(found[1:])


def _cluster(devices: Sequence[Device], on: Sequence[str], found: dict[tuple[int, int], Link]) -> Cluster:
    """Devices by rank, with their links both ways, and their hosts."""
    names = [device.name for device in devices]
    links: dict[tuple[str, str], Link] = {}
    for (first, second), link in found.items():
        links[names[first], names[second]] = links[names[second], names[first]] = link
    groups = [(host, [name for name, _ in each]) for host, each in _by_host(names, on)]
    if len({host for host, _ in groups}) < len(groups):
        raise RankError(
            f"ranks of a host do not follow each other: {', '.join(on)}, by rank. Start them by torchrun",
            on_all=True,
        )
    slowest = max(found.values(), key=lambda link: link.latency_s + SIZES[-1] / link.bytes_per_s)
    hosts = tuple([Host(host, tuple(inside), _inside(inside, links, slowest)) for host, inside in groups])
    return Cluster(tuple(devices), links=links, link=slowest, hosts=hosts)


def _by_host(names: Sequence[str], on: Sequence[str]) -> list[tuple[str, list[tuple[str, str]]]]:
    pairs = zip(names, on, strict=True)
    return [(host, list(each)) for host, each in groupby(pairs, lambda pair: pair[1])]


def _inside(names: Sequence[str], links: dict[tuple[str, str], Link], else_: Link) -> Link:
    """The slowest link of a host: that of any two of its devices without one of their own."""
    inside = [links[a, b] for a, b in combinations(names, 2)]
    return max(inside, key=lambda link: link.latency_s + SIZES[-1] / link.bytes_per_s, default=else_)
