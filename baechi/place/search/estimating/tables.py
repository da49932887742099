"""A problem as arrays for estimates, computed once. Phase 0 is forward, phase 1 backward.

A table of lists of different lengths is two arrays: all lists in a row, and where each begins.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from baechi.cost.indexed import FROM_HOST, seconds_by_device
from baechi.cost.machine import host_s_of, last_part
from baechi.cost.own_work import OwnWork
from baechi.cost.transfer import transfer_s
from baechi.place.problem import Problem
from baechi.place.search.estimating.compiled import Bools, Floats, Ints, inlined
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
        """Pack lists.

        Args:
            lists: of integers.
        """
        begin = np.zeros(len(lists) + 1, np.int64)
        np.cumsum([len(items) for items in lists], out=begin[1:])
        return cls(begin, np.array([item for items in lists for item in items], np.int64))


class Tables(NamedTuple):
    """A problem, ready for estimates. The host's index is that after the last device.

    Args:
        training: whether a step has a backward.
        in_turn: whether layers launch in the code's order, not by priority.
        seconds: by phase, device and layer.
        host_s, last_part: by phase and layer, the host's seconds to issue it; the last kernel's share.
        charged: whether the host takes any time.
        launch_s: by phase, the host's seconds to issue one kernel.
        call_s: by layer, what the runtime takes of the host for its call on several devices.
        send_s: by phase and tensor, the host's seconds for a transfer of it.
        node_s, fetch_s: the host's seconds to receive a gradient; to fetch each of `fetched`.
        reads, before: by layer, the tensors that it reads, and layers it is ordered after without a tensor.
        to_end_s: by phase and layer, the least seconds from its start to the end of the phase.
        backward_s: the least seconds of backward.
        source: by tensor, its layer, or `FROM_HOST`.
        makes, after: by layer, the tensors it makes, and layers ordered after it without a tensor.
        readers, graded: by tensor, the layers that read it, and those of them that send a gradient.
        missing: by layer, how many tensors and layers it waits for.
        link: by source and target device, the row of `travel_s`.
        travel_s: by link and tensor, seconds.
        uploads: tensors that come from the host.
        fetched, losses: by output that the host fetches, its layer, and whether backward begins there.
        down_s, up_s: by such tensor and device, seconds of a transfer to the host, and from it.
        stride, channels: see `baechi.cost.channel`.
    """

    training: bool
    in_turn: bool
    seconds: Floats
    host_s: Floats
    last_part: Floats
    charged: bool
    launch_s: Floats
    call_s: Floats
    send_s: Floats
    node_s: float
    fetch_s: Floats
    reads: Lists
    before: Lists
    to_end_s: Floats
    backward_s: float
    source: Ints
    makes: Lists
    after: Lists
    readers: Lists
    graded: Lists
    missing: Ints
    link: Ints
    travel_s: Floats
    uploads: Ints
    fetched: Ints
    losses: Bools
    down_s: Floats
    up_s: Floats
    stride: int
    channels: int

    @classmethod
    def of(cls, problem: Problem, *, in_turn: bool = False) -> "Tables":
        """Compute the tables of a problem.

        Args:
            problem: what is placed.
            in_turn: whether layers launch in the code's order.
        """
        indexed, graph = problem.indexed, problem.graph
        phases: tuple[Phase, ...] = ("forward", "backward") if problem.training else ("forward",)
        names, layers, ends = indexed.names, len(indexed), len(problem.cluster) + 1
        seconds = [seconds_by_device(graph, names, problem.cluster.devices, f"{phase}_s") for phase in phases]
        host_s = [host_s_of(indexed.costs, phase) for phase in phases]
        launch_s = [problem.cluster.launch_s if any(row) else 0.0 for row in host_s]
        own = OwnWork.of(indexed, problem.cluster, training=problem.training)
        send_s = [own.transfer_s, [own.node_s] * len(indexed.source)]
        parts = [[last_part(own_s, problem.cluster.launch_s) for own_s in row] for row in host_s]
        to_end_s = [_to_end_s(problem, seconds[0]), _to_end_of_backward_s(problem, seconds[-1])]
        missing = [
            sum([indexed.source[tensor] != FROM_HOST for tensor in reads]) + len(before)
            for reads, before in zip(indexed.reads, indexed.before, strict=True)
        ]
        link, travel_s = _travel_s(problem)
        stride = ends if problem.cluster.reception == "free" else 0
        sizes, shape = [tensor.size_bytes for tensor in indexed.fetched], (len(indexed.fetched), ends - 1)
        down = [
            [transfer_s(problem.links[here][problem.host], size) for here in problem.devices]
            for size in sizes
        ]
        up = [
            [transfer_s(problem.links[problem.host][there], size) for there in problem.devices]
            for size in sizes
        ]
        return cls(
            training=problem.training,
            in_turn=in_turn,
            seconds=np.array(seconds, np.float64).reshape(len(phases), ends - 1, layers),
            host_s=np.array(host_s, np.float64).reshape(len(phases), layers),
            last_part=np.array(parts, np.float64).reshape(len(phases), layers),
            charged=any([any(row) for row in host_s]),
            launch_s=np.array(launch_s, np.float64),
            call_s=np.array(own.call_s, np.float64),
            send_s=np.array(send_s[: len(phases)], np.float64) + np.array(launch_s)[:, None],
            node_s=own.node_s,
            fetch_s=np.array(own.fetch_s, np.float64) + launch_s[0],
            reads=Lists.of(indexed.reads),
            before=Lists.of(indexed.before),
            to_end_s=np.array(to_end_s, np.float64),
            backward_s=max(to_end_s[1], default=0.0) if problem.training else 0.0,
            source=np.array(indexed.source, np.int64),
            makes=Lists.of(indexed.makes),
            after=Lists.of(indexed.after),
            readers=Lists.of(indexed.consumers),
            graded=Lists.of(indexed.graded),
            missing=np.array(missing, np.int64),
            link=link,
            travel_s=travel_s,
            uploads=np.array([n for n, maker in enumerate(indexed.source) if maker == FROM_HOST], np.int64),
            fetched=np.array([tensor.maker for tensor in indexed.fetched], np.int64),
            losses=np.array([tensor.is_loss for tensor in indexed.fetched], np.bool_),
            down_s=np.array(down, np.float64).reshape(shape),
            up_s=np.array(up, np.float64).reshape(shape),
            stride=stride,
            channels=ends * ends if stride else ends,
        )


@inlined
def calls_s(tables: Tables, device_of: Ints) -> Floats:
    """By layer, what the runtime takes of the host for its call: nothing if one device has all layers.

    Args:
        tables: the problem.
        device_of: by layer.
    """
    return np.zeros(len(device_of)) if is_alone(device_of) else tables.call_s


@inlined
def is_alone(device_of: Ints) -> bool:
    """Whether one device has all layers.

    Args:
        device_of: by layer.
    """
    for device in device_of:
        if device != device_of[0]:
            return False
    return True


@inlined
def work_s(seconds: Floats, device_of: Ints) -> Floats:
    """The work of each device.

    Args:
        seconds: by device and layer.
        device_of: by layer.
    """
    found = np.zeros(seconds.shape[0])
    for layer in range(len(device_of)):
        found[device_of[layer]] += seconds[device_of[layer], layer]
    return found


@inlined
def begins(numbers: Ints, most: int) -> Ints:
    """Where each number's share begins, when things are sorted by it.

    Args:
        numbers: of things.
        most: the numbers are below it.

    Returns:
        By number; at last the end.
    """
    found = np.zeros(most + 1, np.int64)
    for number in numbers:
        found[number + 1] += 1
    for number in range(most):
        found[number + 1] += found[number]
    return found


def _travel_s(problem: Problem) -> tuple[Ints, Floats]:
    """By source and target, the number of their link; by link and tensor, seconds."""
    links = dict.fromkeys([link for row in problem.links for link in row])
    numbers = {link: number for number, link in enumerate(links)}
    which = [[numbers[link] for link in row] for row in problem.links]
    sizes = problem.indexed.size_bytes
    seconds = [[transfer_s(link, size) for size in sizes] for link in numbers]
    return np.array(which, np.int64), np.array(seconds, np.float64).reshape(len(numbers), len(sizes))


def _to_end_s(problem: Problem, seconds: Sequence[Sequence[float]]) -> list[float]:
    """By layer, the least seconds from its start to the end of forward, under any placement."""
    indexed = problem.indexed
    left_s = [0.0] * len(indexed)
    for layer in reversed(range(len(indexed))):
        after = [left_s[reader] for tensor in indexed.makes[layer] for reader in indexed.consumers[tensor]]
        left_s[layer] = min([row[layer] for row in seconds]) + max(after, default=0.0)
    return left_s


def _to_end_of_backward_s(problem: Problem, seconds: Sequence[Sequence[float]]) -> list[float]:
    """By layer, the same of backward, which ends where forward begins."""
    indexed = problem.indexed
    left_s = [0.0] * len(indexed)
    for layer in range(len(indexed)):
        makers = [indexed.source[tensor] for tensor in indexed.reads[layer]]
        after = [left_s[maker] for maker in makers if maker != FROM_HOST]
        left_s[layer] = min([row[layer] for row in seconds]) + max(after, default=0.0)
    return left_s
