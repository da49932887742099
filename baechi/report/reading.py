"""What a step's critical path says: why it is not faster, and what would make it so.

transfer   most of the path is on links
host       most of the path, devices wait for kernels to be issued
work       it is computing: layers that could run at once share a device
serial     it is computing: each layer waits for the one before it
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from baechi.cost.indexed_graph import IndexedGraph
from baechi.cost.own_work import OwnWork
from baechi.records.device import Device
from baechi.records.plan import Plan
from baechi.records.timeline import Timeline
from baechi.report import host_share
from baechi.report.critical import Stretch, critical_path
from baechi.report.dependencies import dependencies_bound_s, dependencies_s, without_host_waits_s
from baechi.units import format_bytes, format_seconds, format_share

Bound = Literal["nothing", "transfer", "host", "work", "serial"]

_SERIAL = 0.8  # fraction of the critical path's compute time: serial if dependencies alone take that long

_NO_SPEED = 0.95  # fraction of the step that dependencies take: more devices do not shorten it

_HOST_BESIDE = (
    0.2  # fraction of the critical path: waiting for the host is told beside what bounds the step more
)

_WORTH_TELLING = 0.05  # fraction of the dependencies' time that reading values has to cost


@dataclass(frozen=True)
class Reading:
    """A step, read.

    Args:
        bound: what bounds it.
        where: the device or link that bounds it most; empty if none does.
        compute_s, transfer_s, host_s: what the critical path consists of.
        dependencies_s: what the step would take if only dependencies between layers limited it.
        why: why the step is not faster, one sentence.
        fullest: which device is the fullest, one sentence.
        change: what would make it faster, one sentence.
    """

    bound: Bound
    where: str
    compute_s: float
    transfer_s: float
    host_s: float
    dependencies_s: float
    why: str
    fullest: str
    change: str

    def __str__(self) -> str:
        return f"{self.why} {self.fullest} {self.change}"


@dataclass(frozen=True)
class _Path:
    """The critical path in sums."""

    plan: Plan
    timeline: Timeline
    on_device_s: dict[str, float]
    on_link_s: dict[str, float]
    host_s: float
    dependencies_s: float

    @property
    def compute_s(self) -> float:
        return sum(self.on_device_s.values())

    @property
    def transfer_s(self) -> float:
        return sum(self.on_link_s.values())

    @property
    def total_s(self) -> float:
        return self.compute_s + self.transfer_s + self.host_s

    def share(self, seconds: float) -> str:
        """A part of the path, as text."""
        return format_share(seconds, self.total_s)


def read(plan: Plan, timeline: Timeline, path: Sequence[Stretch] | None = None) -> Reading:
    """Say what bounds a step."""
    path = critical_path(plan, timeline) if path is None else path
    sums = _sums(plan, timeline, path)
    bound = _bound(sums)
    tables = {"transfer": sums.on_link_s, "work": sums.on_device_s, "serial": sums.on_device_s}
    table: dict[str, float] = tables.get(bound, {})
    where = max(table, key=lambda name: table[name], default="")
    why, change = {
        "nothing": _nothing,
        "transfer": _transfer,
        "host": _host,
        "work": _work,
        "serial": _serial,
    }[bound](sums, where)
    also = _host_beside(sums, bound) + _values_read(plan, sums.dependencies_s)
    return Reading(
        bound, where, sums.compute_s, sums.transfer_s, sums.host_s, sums.dependencies_s,
        why, _fullest(plan, timeline), change + also,
    )  # fmt: skip


def _sums(plan: Plan, timeline: Timeline, path: Sequence[Stretch]) -> _Path:
    on_device: dict[str, float] = {}
    on_link: dict[str, float] = {}
    for stretch in path:
        table = on_device if stretch.span.kind == "compute" else on_link
        table[stretch.span.where] = table.get(stretch.span.where, 0.0) + stretch.seconds
    host_s = sum([stretch.host_s for stretch in path])
    return _Path(plan, timeline, on_device, on_link, host_s, dependencies_s(plan))


def _bound(sums: _Path) -> Bound:
    if sums.total_s == 0:
        return "nothing"
    if host_share.bounds(sums.timeline, sums.plan.devices_used):
        return "host"
    if sums.transfer_s > max(sums.compute_s, sums.host_s):
        return "transfer"
    if sums.host_s > sums.compute_s:
        return "host"
    return "work" if sums.dependencies_s < _SERIAL * sums.compute_s else "serial"


def _nothing(sums: _Path, where: str) -> tuple[str, str]:
    del sums, where
    return "Nothing takes time in this step.", "There is nothing to make faster."


def _transfer(sums: _Path, where: str) -> tuple[str, str]:
    link_s, source, target = sums.on_link_s[where], *where.split(">")
    why = (
        f"The step is bound by transfers: {sums.share(sums.transfer_s)} of its critical path, "
        f"most of them over the link {where} ({format_seconds(link_s)})."
    )
    sent = [s for s in sums.timeline.spans if s.where == where]
    dearest = max(sent, key=lambda span: span.end_s - span.start_s)
    latency_s = sums.plan.cluster.link_between(source, target).latency_s * len(sent)
    if 2 * latency_s > sums.timeline.busy_s(where, "transfer"):
        how = f"fewer transfers there ({len(sent)} small ones, mostly latency)"
    else:
        how = (
            f"fewer bytes there (dearest is the output of {dearest.layer or 'the caller'}, "
            f"{format_bytes(dearest.size_bytes)}) or a faster link"
        )
    return why, f"Faster with {how}: place with fewer devices, or keep what talks most together."


def _host(sums: _Path, where: str) -> tuple[str, str]:
    del where
    if host_share.worked_s(sums.timeline):
        worked = host_share.share(sums.timeline, sums.plan.devices_used)
        return (
            f"The step is bound by the host, which works for {worked}.",
            f"Faster with {host_share.LIFTED}.",
        )
    why = (
        f"The step is bound by the host: for {sums.share(sums.host_s)} of its critical path "
        f"devices wait for kernels to be issued{_own_share(sums)}."
    )
    return why, "Faster with a larger batch, or with fewer and larger kernels; other devices would not help."


def _host_beside(sums: _Path, bound: Bound) -> str:
    """What devices wait for the host where computing bounds the step, as one more sentence."""
    if bound not in ("work", "serial") or sums.host_s < _HOST_BESIDE * sums.total_s:
        return ""
    return (
        f" For {sums.share(sums.host_s)} of its critical path devices wait for kernels to be issued: a "
        "larger batch, or fewer and larger kernels, would help as well."
    )


def _own_share(sums: _Path) -> str:
    """What baechi's own runtime takes of the host in the step, as text; empty if that is not charged."""
    plan, spans = sums.plan, sums.timeline.spans
    if plan.cluster.host is None:
        return ""
    own = OwnWork.of(plan.graph, IndexedGraph.of(plan.graph), plan.cluster)
    sent = [span.phase for span in spans if span.kind == "transfer"]
    calls_s = sum(own.call_s) if len(plan.devices_used) > 1 else 0.0
    transfers_s = sent.count("forward") * max(own.transfer_s, default=0.0)
    own_s = calls_s + transfers_s + 2 * own.node_s * sent.count("backward")
    return f" (the runtime itself takes the host up to {format_seconds(own_s)}, without what waits)"


def _work(sums: _Path, where: str) -> tuple[str, str]:
    timeline, step_s = sums.timeline, sums.timeline.makespan_s
    busy_s = timeline.busy_s(where)
    who = f"{where}, which computes {format_share(busy_s, step_s)} of it"
    why = (
        f"The step is bound by the work on {who if 2 * busy_s > step_s else 'one device after the other'}: "
        "layers that could run at once share a device "
        f"(dependencies alone would take {format_seconds(sums.dependencies_s)})."
    )
    idlest = min(sums.plan.cluster.names, key=timeline.busy_s)
    idle_s = step_s - timeline.busy_s(idlest)
    if idle_s < 0.3 * step_s or idlest == where:
        return why, "Faster with one more device, or with faster ones."
    free = sums.plan.cluster.device(idlest).memory_bytes - timeline.peak_bytes.get(idlest, 0)
    return why, (
        f"Faster with some of them on {idlest} (idle {format_share(idle_s, step_s)} of the step, "
        f"{format_bytes(max(0, free))} free), if what then travels takes less than that saves."
    )


def _serial(sums: _Path, where: str) -> tuple[str, str]:
    timeline, step_s = sums.timeline, sums.timeline.makespan_s
    busy = sum([timeline.busy_s(name) for name in sums.plan.cluster.names]) / (step_s or 1)
    devices = len(sums.plan.cluster)
    why = (
        "The step is serial: each layer waits for the one before it, so on average "
        f"{busy:.1f} of {devices} device{'s' * (devices > 1)} compute{'s' * (devices == 1)}."
    )
    share = sums.share(sums.on_device_s[where])
    alone = ""
    if saves_nothing(dependencies_bound_s(sums.plan), step_s):
        alone = "; more devices alone add memory, not speed"
    return why, (
        f"Faster with faster devices ({where} computes {share} of the critical path), or in microbatches if "
        f"rows do not depend on each other{alone}."
    )


def saves_nothing(chain_s: float, step_s: float) -> bool:
    """Whether more devices do not make a step faster: dependencies alone take nearly all of it."""
    return chain_s >= _NO_SPEED * step_s


def _values_read(plan: Plan, all_s: float) -> str:
    """What it costs that the code reads values, as one more sentence; empty if that is little."""
    edges = plan.graph.edges
    awaited = [source for source, target in edges if plan.graph.edge_costs(source, target).host_waits]
    if not awaited or (saved_s := all_s - without_host_waits_s(plan)) < _WORTH_TELLING * all_s:
        return ""
    makers = list(dict.fromkeys(awaited))
    more = f" and {len(makers) - 1} more" if len(makers) > 1 else ""
    return (
        f" The code reads values of {makers[0]}{more} (.item(), a condition, a mask as index), and what it "
        "calls next waits for them: without that, dependencies alone would take "
        f"{format_seconds(saved_s)} less."
    )


def _fullest(plan: Plan, timeline: Timeline) -> str:
    def full(device: Device) -> float:
        limit = device.memory_bytes
        return timeline.peak_bytes.get(device.name, 0) / limit if limit else 0.0

    device = max(plan.cluster.devices, key=full)
    name, limit = device.name, device.memory_bytes
    peak = timeline.peak_bytes.get(name, 0)
    return (
        f"{name} is the fullest: {format_bytes(peak)} of {format_bytes(limit)} ({format_share(peak, limit)})."
    )
