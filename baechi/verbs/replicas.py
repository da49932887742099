"""How many replicas of a model a cluster is best divided into, and the pipeline of each."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Literal, TypeVar

from baechi.cost.transfer import ring_links, ring_s
from baechi.errors import PlacementError
from baechi.place.evaluation import Effort
from baechi.place.recompute import Recompute
from baechi.progress import progress, verbosity
from baechi.records.cluster import Cluster
from baechi.records.graph import LayerGraph
from baechi.records.pipeline import Pipeline
from baechi.records.replicas import Replicas, ReplicasTried
from baechi.verbs.given import Optimizer, check_microbatches, name_of
from baechi.verbs.plans import place, with_optimizer

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
        cluster: the devices, or text that `Cluster.parse` reads, such as `"8x(8xH100-80GB)"`.
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
    if not isinstance(graph, LayerGraph):
        raise TypeError(
            f"graph is of type {type(graph).__name__}: it takes the layer graph of one microbatch"
        )
    whole, graph = Cluster.parse(cluster), with_optimizer(graph, name_of(optimizer))
    divided = dict(_divisions(whole))
    if replicas != "auto" and (isinstance(replicas, bool) or replicas not in divided):
        raise ValueError(
            f"replicas is {replicas!r}: {len(whole)} devices divide into {', '.join(map(str, divided))} "
            "equal groups, of whole hosts or within one"
        )

    def placed(count: int, how_long: Effort) -> Replicas:
        part = whole.part(divided[count][0])
        made = place(graph, part, microbatches=microbatches, recompute=recompute, effort=how_long)
        return Replicas(made, whole, divided[count], _all_reduce_s(made, whole, divided[count]))

    with verbosity(verbose), progress("dividing"):
        if replicas != "auto":
            return placed(replicas, effort)
        found, tried = list[Replicas](), list[ReplicasTried]()
        refused: PlacementError | None = None
        for count in sorted(divided, reverse=True):
            try:
                one = placed(count, 0)
            except PlacementError as error:
                refused = error.with_traceback(None)
                tried.append(ReplicasTried(count, refused=str(error).partition("\n")[0]))
                continue
            found.append(one)
            tried.append(ReplicasTried(count, one.step_s))
            if one.microbatches_per_s < found[0].microbatches_per_s:
                break  # fewer have longer pipelines still
            found = [one]
        if not found:
            assert refused is not None
            raise refused
        best = found[0] if effort == 0 else placed(len(found[0].groups), effort)
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
            return kinds, [(order.index(home.name), home.link) for home in homes]
        return kinds, [cluster.link_between(a, b) for a in group for b in group if a != b]

    first = what(groups[0])
    return all([what(group) == first for group in groups[1:]])


def _all_reduce_s(pipeline: Pipeline, cluster: Cluster, groups: Groups) -> dict[str, float]:
    """By device of the first group, how long the gradients of its weights take in a ring."""
    sizes = dict.fromkeys(pipeline.cluster.names, 0)
    for name, costs in pipeline.graph.placed_costs():
        sizes[pipeline.device_of[name]] += ceil(costs.grad_bytes)
    found: dict[str, float] = {}
    for number, (name, size_bytes) in enumerate(sizes.items()):
        ring = [group[number] for group in groups]
        found[name] = ring_s(ring_links(cluster, ring), size_bytes)
    return found
