"""A lower bound on a step: layers on a path run one after the other, each on its fastest device.

    forward     host ─inputs─▶ layer ─▶ layer ─▶ ... ─outputs, one after the other─▶ host
    backward    host ─gradient of a loss that it fetched─▶ layer ─▶ layer ─▶ ...

A layer begins no sooner than the host has issued those before it and its own first kernel, and ends no
sooner than its last one is issued. Where outputs stay, the host issues backward while devices run forward.
"""

from collections.abc import Iterable, Sequence

from baechi.cost.indexed_graph import FROM_HOST, IndexedGraph
from baechi.cost.machine import issue_s
from baechi.cost.transfer import link_table, transfer_s
from baechi.records import Cluster
from baechi.simulate.issue_bounds import host_times_s

Seconds = Sequence[Sequence[float]]
"""By device and layer."""


def longest_forward_s(indexed: IndexedGraph, seconds: Seconds, cluster: Cluster) -> float:
    """The longest path of forward."""
    table, host = link_table(cluster), len(cluster)
    ends_s = soonest_ends_s(
        range(len(indexed)),
        seconds,
        waits=makers_of(indexed),
        there_s=_inputs_there_s(indexed, cluster),
        host_s=host_times_s(indexed, cluster)[0],
        launch_s=cluster.launch_s,
    )
    fetched_s = 0.0
    for output in indexed.fetched:
        back_s = min([transfer_s(row[host], output.size_bytes) for row in table[:host]])
        fetched_s = max(fetched_s, ends_s[output.maker]) + back_s
    return max([fetched_s, *ends_s])


def longest_backward_s(indexed: IndexedGraph, seconds: Seconds, cluster: Cluster) -> float:
    """The longest path of backward."""
    gives: list[list[int]] = [[] for _ in range(len(indexed))]
    for tensor, maker in enumerate(indexed.source):
        if maker != FROM_HOST:
            gives[maker] += indexed.graded[tensor]
    there_s = [0.0] * len(indexed)
    for loss in indexed.fetched:
        if loss.is_loss:
            there_s[loss.maker] = _from_host_s(cluster, loss.size_bytes)
    host_s = host_times_s(indexed, cluster)[1]
    ends_s = soonest_ends_s(
        reversed(range(len(indexed))),
        seconds,
        waits=gives,
        there_s=there_s,
        host_s=None if indexed.outputs_stay else host_s,
        launch_s=cluster.launch_s,
    )
    return max([0.0, *ends_s])


def soonest_ends_s(
    order: Iterable[int],
    seconds: Seconds,
    *,
    waits: Sequence[Sequence[int]],
    there_s: Sequence[float] | None = None,
    host_s: Sequence[float] | None = None,
    launch_s: float = 0.0,
) -> list[float]:
    """By layer, the soonest that it can be over: the longest path that ends with it."""
    fastest_s = [min(times) for times in zip(*seconds, strict=True)]
    at_once = [0.0] * len(waits)
    there_s, host_s = there_s or at_once, host_s or at_once
    ends_s, issued_s = [0.0] * len(waits), [-launch_s] * len(waits)
    for layer in order:
        before = [other for other in waits[layer] if other != FROM_HOST]
        reached_s = max([issued_s[other] for other in before], default=-launch_s)
        begun_s, issued_s[layer] = issue_s(reached_s, host_s[layer], launch_s)
        begin_s = max([begun_s, there_s[layer], *[ends_s[other] for other in before]])
        ends_s[layer] = max(begin_s + fastest_s[layer], issued_s[layer])
    return ends_s


def makers_of(indexed: IndexedGraph) -> list[list[int]]:
    """By layer, those that make what it reads; `FROM_HOST` for what the host sends."""
    return [[indexed.source[tensor] for tensor in reads] for reads in indexed.reads]


def _inputs_there_s(indexed: IndexedGraph, cluster: Cluster) -> list[float]:
    """By layer, when the last input that the host sends it is there; its own glue's inputs stay there."""
    found = [0.0] * len(indexed)
    for tensor, maker in enumerate(indexed.source):
        for reader in indexed.consumers[tensor] if maker == FROM_HOST else ():
            if not indexed.costs[reader].on_host:
                found[reader] = max(found[reader], _from_host_s(cluster, indexed.size_bytes[tensor]))
    return found


def _from_host_s(cluster: Cluster, size_bytes: int) -> float:
    """The seconds of a transfer from the host to the device that is nearest to it."""
    *devices, _ = link_table(cluster)[-1]
    return min([transfer_s(link, size_bytes) for link in devices])
