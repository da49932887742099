"""A problem as flat arrays for the compiled estimate, computed once. Phase 0 is forward, phase 1 backward.

A table of several dimensions is one array, the last dimension side by side. A table of lists of different
lengths is two arrays: all lists in a row, and where each begins.
"""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from baechi.cost.indexed_graph import FROM_HOST, seconds_by_device
from baechi.cost.machine import host_s_of, last_part
from baechi.cost.own_work import OwnWork
from baechi.cost.transfer import transfer_s
from baechi.place.problem import Problem
from baechi.place.search.compiler import Bools, Floats, Ints
from baechi.records import Link
from baechi.records.timeline import Phase


class Lists(NamedTuple):
    """Lists of integers: list i is `items[begin[i]:begin[i + 1]]`.

    Args:
        begin: where each list begins, and at last the end.
        items: of all lists.
    """

    begin: Ints
    items: Ints

    @classmethod
    def of(cls, lists: Sequence[Sequence[int]]) -> "Lists":
        """Pack lists."""
        begin = np.zeros(len(lists) + 1, np.int64)
        np.cumsum([len(items) for items in lists], out=begin[1:])
        return cls(begin, np.array([item for items in lists for item in items], np.int64))


class Tables(NamedTuple):
    """A problem, ready for estimates. The host's index is that after the last device.

    Args:
        layers, devices: how many there are.
        phases: 2 if a step has a backward, else 1.
        stride: see `baechi.cost.channel`; 0 if devices receive one tensor at a time.
        stays: whether the host need not fetch what the model returns.
        fed: whether layers read what comes from the host.
        launch_s: the host's seconds to issue one kernel; 0 if the graph says nothing of the host.
        node_s: the host's seconds for one end of a gradient's transfer.
        seconds: by phase, device and layer.
        host_s, last_part: by phase and layer, the host's seconds to issue it; the last kernel's share.
        to_end_s: by phase and layer, the least seconds from its start to the end of the phase.
        call_s: by layer, what the runtime takes of the host for its call on several devices.
        reads: by layer, the tensors that it reads.
        graded: by item of `reads`, whether the layer sends a gradient of it to the layer that makes it.
        makes: by layer, the tensors that it makes.
        before, after: by layer, layers that it is ordered behind, or before, without a tensor.
        missing: by layer, how many tensors and layers it waits for.
        readers: by tensor, the layers that read it.
        source: by tensor, its layer, or `FROM_HOST`.
        ahead: by tensor, whether it is sent as soon as it is made, not when it is asked for.
        send_s: by tensor, the host's seconds for a transfer of it.
        link: by source and target device, the row of `travel_s`.
        travel_s: by link and tensor, seconds.
        fetched, losses: by output that the host fetches, its layer, and whether backward begins there.
        fetch_s: by such output, the host's seconds to fetch it.
        down_s, up_s: by such output and device, seconds of a transfer to the host, and from it.
    """

    layers: int
    devices: int
    phases: int
    stride: int
    stays: bool
    fed: bool
    launch_s: float
    node_s: float
    seconds: Floats
    host_s: Floats
    last_part: Floats
    to_end_s: Floats
    call_s: Floats
    reads: Lists
    graded: Bools
    makes: Lists
    before: Lists
    after: Lists
    missing: Ints
    readers: Lists
    source: Ints
    ahead: Bools
    send_s: Floats
    link: Ints
    travel_s: Floats
    fetched: Ints
    losses: Bools
    fetch_s: Floats
    down_s: Floats
    up_s: Floats

    @classmethod
    def of(cls, problem: Problem) -> "Tables":
        """Compute the tables of a problem."""
        indexed, graph, links = problem.indexed, problem.graph, problem.links
        phases: tuple[Phase, ...] = ("forward", "backward") if problem.training else ("forward",)
        names, devices = indexed.names, problem.cluster.devices
        seconds = [seconds_by_device(graph, names, devices, f"{phase}_s") for phase in phases]
        host_s = [host_s_of(indexed.costs, phase) for phase in phases]
        launch_s = problem.cluster.launch_s if any(map(any, host_s)) else 0.0
        own = OwnWork.of(problem.graph, indexed, problem.cluster)
        parts = [[last_part(own_s, problem.cluster.launch_s) for own_s in row] for row in host_s]
        to_end_s = [_to_end_s(problem, rows, back=back > 0) for back, rows in enumerate(seconds)]
        reads = [(layer, tensor) for layer, tensors in enumerate(indexed.reads) for tensor in tensors]
        graded = [
            problem.training and indexed.source[tensor] != FROM_HOST and layer in indexed.graded[tensor]
            for layer, tensor in reads
        ]
        missing = [
            sum([indexed.source[tensor] != FROM_HOST for tensor in tensors]) + len(before)
            for tensors, before in zip(indexed.reads, indexed.before, strict=True)
        ]
        numbers = {link: number for number, link in enumerate(dict.fromkeys(chain.from_iterable(links)))}
        sizes, ends = [tensor.size_bytes for tensor in indexed.fetched], problem.devices
        return cls(
            layers=len(indexed),
            devices=len(devices),
            phases=len(phases),
            stride=len(devices) + 1 if problem.cluster.reception == "free" else 0,
            stays=bool(indexed.outputs_stay),
            fed=FROM_HOST in indexed.source,
            launch_s=float(launch_s),
            node_s=float(own.node_s),
            seconds=_flat(chain.from_iterable(seconds)),
            host_s=_flat(host_s),
            last_part=_flat(parts),
            to_end_s=_flat(to_end_s),
            call_s=np.array(own.call_s, np.float64),
            reads=Lists.of(indexed.reads),
            graded=np.array(graded, np.bool_),
            makes=Lists.of(indexed.makes),
            before=Lists.of(indexed.before),
            after=Lists.of(indexed.after),
            missing=np.array(missing, np.int64),
            readers=Lists.of(indexed.consumers),
            source=np.array(indexed.source, np.int64),
            ahead=np.array(indexed.ahead, np.bool_),
            send_s=np.array(own.transfer_s, np.float64) + launch_s,
            link=np.array([numbers[link] for row in links for link in row], np.int64),
            travel_s=_flat([[transfer_s(link, size) for size in indexed.size_bytes] for link in numbers]),
            fetched=np.array([tensor.maker for tensor in indexed.fetched], np.int64),
            losses=np.array([tensor.is_loss for tensor in indexed.fetched], np.bool_),
            fetch_s=np.array(own.fetch_s, np.float64) + launch_s,
            down_s=_flat([_travels_s([links[here][problem.host] for here in ends], size) for size in sizes]),
            up_s=_flat([_travels_s([links[problem.host][there] for there in ends], size) for size in sizes]),
        )


def _flat(rows: Iterable[Sequence[float]]) -> Floats:
    return np.array([value for row in rows for value in row], np.float64)


def _travels_s(links: Iterable[Link], size_bytes: int) -> list[float]:
    return [transfer_s(link, size_bytes) for link in links]


def _to_end_s(problem: Problem, seconds: Sequence[Sequence[float]], *, back: bool) -> list[float]:
    """By layer, the least seconds from its start to the end of a phase, under any placement.

    Backward ends where forward begins.
    """
    indexed = problem.indexed
    left_s = [0.0] * len(indexed)
    for layer in range(len(indexed)) if back else reversed(range(len(indexed))):
        if back:
            makers = [indexed.source[tensor] for tensor in indexed.reads[layer]]
            after = [left_s[maker] for maker in makers if maker != FROM_HOST]
        else:
            after = [
                left_s[reader] for tensor in indexed.makes[layer] for reader in indexed.consumers[tensor]
            ]
        left_s[layer] = min([row[layer] for row in seconds]) + max(after, default=0.0)
    return left_s
