"""A lower bound on the step from the host's issue times, for graphs that record them.

In forward one thread sends the inputs, issues all layers, then fetches what the model returns. In
backward each device has a thread. A thread issues a layer after the layers that give it gradients have
been issued, on any device. An addition of gradients may be counted with another layer, so it is left out.
"""

from collections.abc import Sequence

from baechi.cost.indexed_graph import FROM_HOST, IndexedGraph
from baechi.cost.machine import host_s_of
from baechi.cost.transfer import link_table, transfer_s
from baechi.records import Cluster
from baechi.records.timeline import Phase


def shortest_issue_s(indexed: IndexedGraph, cluster: Cluster) -> tuple[float, float]:
    """The least time that the host needs to issue a step, under any plan."""
    forward_s, alone_s = host_times_s(indexed, cluster)
    if not any(forward_s):
        return 0.0, 0.0
    links, host = link_table(cluster), len(cluster)
    fetched_s = [
        cluster.launch_s + min([transfer_s(links[here][host], tensor.size_bytes) for here in range(host)])
        for tensor in indexed.fetched
    ]
    shared_s = sum(alone_s) / len(cluster)
    backward = max(shared_s, _longest_s(indexed, alone_s)) - cluster.launch_s
    sent = _sent_inputs(indexed)
    forward = sum(forward_s) + cluster.launch_s * (sent - 1)
    if cluster.ranks:  # the hosts share it; each begins with its first kernel
        forward = max(0.0, (sum(forward_s) + cluster.launch_s * sent) / len(cluster) - cluster.launch_s)
    return forward + sum(fetched_s), max(0.0, backward)


def host_times_s(indexed: IndexedGraph, cluster: Cluster) -> tuple[list[float], list[float]]:
    """The least time that the host needs to issue each layer."""
    forward_s = _host_s(indexed, "forward")
    if not any(forward_s):
        return forward_s, [0.0] * len(indexed)
    alone_s = [
        max(0.0, seconds - cluster.launch_s * additions)
        for seconds, additions in zip(_host_s(indexed, "backward"), additions(indexed), strict=True)
    ]
    return forward_s, alone_s


def _sent_inputs(indexed: IndexedGraph) -> int:
    """How many inputs are sent to some device: all but those that only glue on the host reads.

    One that is read in parts counts once: a model on one device gets it whole.
    """
    on_host = [costs.on_host for costs in indexed.costs]
    tensors = zip(indexed.source, indexed.origin, indexed.consumers, strict=True)
    read = [(origin, layers) for maker, origin, layers in tensors if maker == FROM_HOST]
    return len({origin for origin, layers in read if not all(on_host[layer] for layer in layers)})


def _host_s(indexed: IndexedGraph, phase: Phase) -> list[float]:
    """By layer, what the host takes; glue on inputs may be the host's own."""
    host_s = host_s_of(indexed.costs, phase)
    return [0.0 if costs.on_host else own_s for costs, own_s in zip(indexed.costs, host_s, strict=True)]


def additions(indexed: IndexedGraph) -> list[int]:
    """By layer, the gradient additions that it makes if all consumers of a tensor share one device."""
    found = [0] * len(indexed)
    for maker, readers in zip(indexed.source, indexed.graded, strict=True):
        for reader in readers[:-1] if maker != FROM_HOST else ():
            found[reader] += 1
    return found


def _longest_s(indexed: IndexedGraph, seconds: Sequence[float]) -> float:
    """The longest path that gradients take through the graph."""
    ends_s = [0.0] * len(indexed)
    for layer, reads in enumerate(indexed.reads):
        makers = [indexed.source[tensor] for tensor in reads if layer in indexed.graded[tensor]]
        before_s = max([ends_s[maker] for maker in makers if maker != FROM_HOST], default=0.0)
        ends_s[layer] = before_s + seconds[layer]
    return max(ends_s, default=0.0)
