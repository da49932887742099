"""How many replicas of a model a cluster is best divided into, and the pipeline of each."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from math import ceil
from pathlib import Path
from typing import Literal, TypeVar

from baechi.cost.transfer import ring_s
from baechi.errors import PlacementError
from baechi.place.evaluation import Effort
from baechi.place.recompute import Recompute
from baechi.progress import progress, verbosity
from baechi.records.cluster import Cluster
from baechi.records.graph import LayerGraph
from baechi.records.pipeline import Pipeline
from baechi.records.replicas import Replicas, ReplicasTried
from baechi.verbs.given import Optimizer, check_graph, check_microbatches, name_of
from baechi.verbs.pipelines import cuts_outlook_s
from baechi.verbs.plans import place, placed_by_cuts, with_optimizer

_NEAR = 1.02
"""The best of all orders may be as many times faster than the few by which cuts are judged."""

_T = TypeVar("_T")

Groups = tuple[tuple[str, ...], ...]


def replicate(
    graph: LayerGraph,
    cluster: Cluster | str | Path,
    *,
    microbatches: int,
    replicas: int | Literal["auto"] = "auto",
    optimizer: Optimizer = None,
    effort: Effort = 1,
    recompute: Recompute = None,
    verbose: bool | None = None,
) -> Replicas:
    """Divide a cluster into equal groups of devices, and place a pipeline on each.

    Each replica has a batch of its own, as under `DistributedDataParallel`. The gradients of their weights
    are added up in a ring, on each device once its last backward is over. A ring over R devices sends
    2 (R - 1) / R of the bytes (P. Patarasu, X. Yuan, "Bandwidth optimal all-reduce algorithms", 2009).

    Args:
        graph: the layer graph of one microbatch (`profile(microbatches=...)`).
        cluster: the devices, or text that `Cluster.parse` reads, such as `"8x(8xH100-80GB)"`. Devices of text
            are those of ranks: each has a host of its own, as replicas have where they run.
        microbatches: into how many parts the batch of each replica is split.
        replicas: how many; `"auto"` takes the number that trains most microbatches in a second. Groups have
            the same kinds of devices in the same order, and are whole hosts or lie in one.
        optimizer: as `place` takes it.
        effort: as `place` takes it, for the number that is chosen; others are tried without a search.
        recompute: as `place` takes it.
        verbose: as `place` takes it.

    Returns:
        The pipeline of one replica with its groups, and what was tried.

    Raises:
        PlacementError: no number of replicas fits.
        TypeError: it is not a layer graph.
        ValueError: the cluster does not divide into so many equal groups; or as `place` raises it.
    """
    check_microbatches(microbatches)
    check_graph(graph)
    whole = Cluster.parse(cluster, ranks=not isinstance(cluster, Cluster))
    graph = with_optimizer(graph, name_of(optimizer))
    divided = dict(_divisions(whole))
    if replicas != "auto" and (isinstance(replicas, bool) or replicas not in divided):
        raise ValueError(
            f"replicas is {replicas!r}: {len(whole)} devices divide into {', '.join(map(str, divided))} "
            "equal groups, of whole hosts or within one"
        )

    def of(count: int, made: Pipeline) -> Replicas:
        return Replicas(made, whole, divided[count], _all_reduce_s(made, whole, divided[count]))

    def placed(count: int, how_long: Effort, names: Recompute = recompute) -> Replicas:
        part = whole.part(divided[count][0])
        return of(count, place(graph, part, microbatches=microbatches, recompute=names, effort=how_long))

    with verbosity(verbose), progress("dividing"):
        if replicas != "auto":
            return placed(replicas, effort)
        best: Replicas | None = None
        tried = list[ReplicasTried]()
        for count in sorted(divided, reverse=True):
            part = whole.part(divided[count][0])
            if best is not None and recompute is None and microbatches > 1:
                enough_s = _NEAR * count * microbatches / best.microbatches_per_s
                about_s = cuts_outlook_s(graph, part, microbatches, enough_s)
                if about_s is not None and about_s > enough_s:
                    most = f"about {count * microbatches / about_s:.4g} microbatches a second at most"
                    tried.append(ReplicasTried(count, refused=most))
                    break
            try:
                one = of(count, placed_by_cuts(graph, part, microbatches, recompute, quick=effort != 0))
            except PlacementError as error:
                tried.append(ReplicasTried(count, refused=str(error).partition("\n")[0]))
                continue
            tried.append(ReplicasTried(count, one.step_s))
            if best is not None and one.microbatches_per_s < best.microbatches_per_s:
                break  # fewer have longer pipelines still
            best = one
        if best is None:  # nothing in flight at once fits: all devices together, whatever the way
            return replace(placed(min(divided), effort), tried=tuple(tried))
        if effort != 0:
            searched = placed(len(best.groups), effort, best.pipeline.plan.recompute or None)
            best = min(best, searched, key=lambda found: found.step_s)
    return replace(best, tried=tuple(tried))


def _divisions(cluster: Cluster) -> Iterator[tuple[int, Groups]]:
    """The numbers of equal groups that a cluster divides into, with the groups."""
    hosts = [host.devices for host in cluster.hosts] or [cluster.names]
    for count in range(1, len(cluster) + 1):
        if count % len(hosts) == 0:  # several in each host
            within = count // len(hosts)
            groups = [group for host in hosts for group in _slices(host, within)]
        elif len(hosts) % count == 0:  # several hosts each
            groups = [tuple([name for host in some for name in host]) for some in _slices(hosts, count)]
        else:
            continue
        if len(groups) == count and are_equal(cluster, groups):
            yield count, tuple(groups)


def _slices(whole: Sequence[_T], count: int) -> list[tuple[_T, ...]]:
    """Equal parts of a sequence; none if it does not divide."""
    size, left = divmod(len(whole), count)
    return [] if left else [tuple(whole[first : first + size]) for first in range(0, len(whole), size)]


def are_equal(cluster: Cluster, groups: Sequence[Sequence[str]]) -> bool:
    """Whether a plan for one group is one for each: devices and links."""
    devices = dict(zip(cluster.names, cluster.devices, strict=True))

    def what(group: Sequence[str]) -> object:
        kinds = [replace(devices[name], name="device") for name in group]
        if not cluster.links:  # then hosts alone say which links there are
            homes = [cluster.host_of[name] for name in group if name in cluster.host_of]
            order = list(dict.fromkeys(home.name for home in homes))
            return kinds, [(order.index(home.name), home.link, home.one_card) for home in homes]
        return kinds, [cluster.link_between(a, b) for a in group for b in group if a != b]

    first = what(groups[0])
    return all([what(group) == first for group in groups[1:]])


def _all_reduce_s(pipeline: Pipeline, cluster: Cluster, groups: Groups) -> dict[str, float]:
    """By device of the first group, how long the gradients of its weights take in a ring."""
    sizes = dict.fromkeys(pipeline.cluster.names, 0)
    for name, costs in pipeline.graph.placed_costs():
        sizes[pipeline.device_of[name]] += ceil(costs.grad_bytes)
    found: dict[str, float] = {}
    rings = [list(pairwise([*ring, ring[0]])) for ring in zip(*groups, strict=True)]
    on_card = _on_card(cluster, [pair for ring in rings for pair in ring])
    for number, (name, size_bytes) in enumerate(sizes.items()):
        links = [
            replace(link, bytes_per_s=link.bytes_per_s / on_card.get(pair, 1))
            for pair in rings[number]
            for link in [cluster.link_between(*pair)]
        ]
        found[name] = ring_s(links, size_bytes)
    return found


def _on_card(cluster: Cluster, pairs: Sequence[tuple[str, str]]) -> dict[tuple[str, str], int]:
    """How many transfers share the network card of a transfer's target, if all run at once."""
    home = cluster.host_of
    between = [(a, b) for a, b in pairs if a in home and home[a] is not home[b] and home[b].one_card]
    count = Counter([home[b].name for _, b in between])
    return {(a, b): count[home[b].name] for a, b in between}
