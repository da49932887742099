"""The facts as tables of text, for the text report and the page alike."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from baechi.records.device import by_kind
from baechi.records.plan import Plan
from baechi.records.timeline import Span, Timeline
from baechi.report.critical import Stretch
from baechi.report.facts import Facts
from baechi.units import binary_unit, format_bytes, format_seconds, format_share, in_unit

_CUTS_SHOWN = 8
_PARTS_SHOWN = 8
_LEAST_SHOWN = 0.005  # of the step: less is 0 %

_DEVICES_SHOWN = 12
_IDLE_NAMED = 3

_Device = TypeVar("_Device")


@dataclass(frozen=True)
class Table:
    """A table.

    Args:
        title: above it.
        columns: their headings.
        rows: as many texts as there are columns, each.
        texts: the columns that are no figures.
        note: below it.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    texts: tuple[str, ...] = ()
    note: str = ""


def tables(facts: Facts) -> list[Table]:
    """All that there is to show, in the order in which one reads it."""
    found = [placement(facts), *([apart(facts)] if facts.plan.apart else [])]
    found += hosts(facts.plan, facts.plan.timeline)
    found += [memory(facts), time(facts), critical(facts), cuts(facts), waiting(facts)]
    found += [candidates(facts)] if facts.candidates else []
    found += [counters(facts.measured)] if facts.measured is not None else []
    return found


def placement(facts: Facts) -> Table:
    """Which modules lie where."""
    used = [device for device in facts.devices if device.layers + device.glue]
    shown, rest = most(used, lambda device: device.busy_s)
    rows = [
        (device.name, ", ".join(device.modules) or "functional ops", str(device.layers), str(device.glue))
        for device in shown
    ]
    notes = [f"And {len(rest)} more that compute less: {by_kind(rest)}."] if rest else []
    idle = [device for device in facts.devices if device not in used]
    if idle:
        names = ", ".join([device.name for device in idle])
        many = f"{len(idle)} devices: {by_kind(idle)}"
        notes.append(f"Nothing lies on {names if len(idle) <= _IDLE_NAMED else many}.")
    return Table(
        "Placement",
        ("device", "modules", "layers", "ops"),
        tuple(rows),
        ("device", "modules"),
        " ".join([*notes, "Ops: functional ops, the work between layers."]),
    )


def most(
    devices: Sequence[_Device], weight: Callable[[_Device], float]
) -> tuple[list[_Device], list[_Device]]:
    """The devices that a table shows, and the rest: all of a few, of many those with most of something."""
    ranked = sorted(range(len(devices)), key=lambda number: -weight(devices[number]))
    shown = set(ranked[:_DEVICES_SHOWN])
    return (
        [device for number, device in enumerate(devices) if number in shown],
        [device for number, device in enumerate(devices) if number not in shown],
    )


def apart(facts: Facts) -> Table:
    """Functional ops that lie elsewhere than by rule, beside their largest input."""
    plan = facts.plan
    found = [(name, plan.device_of[name], device) for name, device in plan.apart.items()]
    note = f"And {len(found) - _CUTS_SHOWN} more." if len(found) > _CUTS_SHOWN else ""
    return Table(
        "Functional ops that lie apart from what they follow",
        ("functional op", "on", "by rule on"),
        tuple(found[:_CUTS_SHOWN]),
        ("functional op", "on", "by rule on"),
        note,
    )


def memory(facts: Facts) -> Table:
    """What each device holds at most, of what, and what it may."""
    training, measured = facts.plan.graph.training, facts.measured
    unit = binary_unit(max([max(device.peak_bytes, device.limit_bytes) for device in facts.devices]))
    columns = ["device", "weights"]
    columns += ["grads", "state"] if training else []
    columns += ["saved" if training else "held", "rest", "peak", "limit", "full"]
    columns += ["measured"] if measured else []
    rows = []
    shown, rest = most(facts.devices, lambda device: device.peak_bytes / max(1, device.limit_bytes))
    for device in shown:
        sizes = [device.weight_bytes]
        sizes += [device.grad_bytes, device.optimizer_bytes] if training else []
        sizes += [device.kept_bytes, device.passing_bytes, device.peak_bytes, device.limit_bytes]
        row = [device.name, *[in_unit(size, unit) for size in sizes]]
        row.append(format_share(device.peak_bytes, device.limit_bytes))
        row += [in_unit(measured.peak_bytes.get(device.name, 0), unit)] if measured else []
        rows.append(tuple(row))
    note = "Rest: outputs, copies from other devices, and what layers need while they run."
    if training:
        accumulate = any(device.accumulate for device in facts.devices)
        note = f"{'' if accumulate else 'What is saved goes as grads come. '}State: the optimizer's. {note}"
    if rest:
        fullest = max([device.peak_bytes / max(1, device.limit_bytes) for device in rest])
        note = f"And {by_kind(rest)}, at most {format_share(fullest, 1)} full. {note}"
    return Table(f"Memory, {unit}", tuple(columns), tuple(rows), ("device",), note)


def time(facts: Facts) -> Table:
    """How long each device computes."""
    columns = ["device", "kind", "computes", "of the step"]
    columns += ["measured", "of it"] if facts.measured else []
    rows = []
    shown, rest = most(facts.devices, lambda device: device.busy_s)
    for device in shown:
        row = [
            device.name,
            device.kind,
            format_seconds(device.busy_s),
            format_share(device.busy_s, facts.step_s),
        ]
        if facts.measured is not None:
            busy_s = facts.measured.busy_s(device.name)
            row += [format_seconds(busy_s), format_share(busy_s, facts.measured.makespan_s)]
        rows.append(tuple(row))
    note = ""
    if rest:
        busiest_s = max([device.busy_s for device in rest])
        note = f"And {by_kind(rest)}, each at most {format_share(busiest_s, facts.step_s)} of the step."
    return Table("Time", tuple(columns), tuple(rows), ("device", "kind"), note)


def critical(facts: Facts) -> Table:
    """What the critical path consists of."""
    sums: dict[str, list[Stretch]] = {}
    for stretch in facts.path:
        sums.setdefault(stretch.span.where, []).append(stretch)
    parts = [(sum([stretch.seconds for stretch in own]), where, own) for where, own in sums.items()]
    parts.append((sum([stretch.host_s for stretch in facts.path]), "(waiting for the host)", []))
    parts = sorted([part for part in parts if part[0] > 0], key=lambda part: (-part[0], part[1]))
    shown = [part for part in parts[:_PARTS_SHOWN] if part[0] >= _LEAST_SHOWN * facts.step_s]
    rows = []
    for seconds, where, own in shown:
        longest = max(own, key=lambda stretch: stretch.seconds, default=None)
        named = _named(facts, longest) if longest else ""
        share = format_share(seconds, facts.step_s)
        rows.append((where, str(len(own) or ""), format_seconds(seconds), share, named))
    rest_s = sum([seconds for seconds, _, _ in parts[len(shown) :]])
    note = f"And {len(parts) - len(shown)} more, {format_seconds(rest_s)} in all." if rest_s else ""
    columns = ("on", "spans", "takes", "of the step", "longest")
    title = "Critical path: what one after the other makes the step as long as it is"
    return Table(title, columns, tuple(rows), ("on", "longest"), note)


def _named(facts: Facts, stretch: Stretch) -> str:
    span = stretch.span
    whole = span.kind == "compute" and len(facts.plan.devices_used) == 1  # then a dry run sees no layers
    who = span.layer or ("the model" if whole else "the caller")
    return f"{who}, {span.phase} ({format_seconds(stretch.seconds)})"


def cuts(facts: Facts) -> Table:
    """What travels between devices, dearest first."""
    found = facts.cuts
    rows = [
        (cut.source, cut.home, cut.target, format_bytes(cut.size_bytes), format_seconds(cut.seconds))
        for cut in found[:_CUTS_SHOWN]
    ]
    total = format_bytes(sum([cut.size_bytes for cut in found]))
    notes = [f"And {len(found) - _CUTS_SHOWN} more."] if len(found) > _CUTS_SHOWN else []
    notes += ["Times include the gradient's way back."] if facts.plan.graph.training else []
    return Table(
        f"Cut edges: {len(found)} transfers forward, {total}",
        ("output of", "from", "to", "size", "takes"),
        tuple(rows),
        ("output of", "from", "to"),
        " ".join(notes) if found else "Nothing travels between devices.",
    )


def traffic(timeline: Timeline) -> Table:
    """What each link carries."""
    links: dict[str, list[Span]] = {}
    for span in timeline.spans:
        if span.kind == "transfer":
            links.setdefault(span.where, []).append(span)
    busiest = sorted(links, key=lambda link: (-timeline.busy_s(link, "transfer"), link))
    rows = []
    for link in busiest:
        busy_s = timeline.busy_s(link, "transfer")
        size = format_bytes(sum([span.size_bytes for span in links[link]]))
        share = format_share(busy_s, timeline.makespan_s)
        rows.append((link, str(len(links[link])), size, format_seconds(busy_s), share))
    columns = ("link", "transfers", "bytes", "takes", "of the step")
    note = "" if rows else "Nothing travels between devices."
    return Table("Links", columns, tuple(rows), ("link",), note)


def waiting(facts: Facts) -> Table:
    """How many layers must wait for their turn, by criterion."""
    rows = [(criterion, str(count)) for criterion, count in facts.waiting.items()]
    note = (
        "naive: all wait. global-topo: a layer waits for what any device launches before it in the plan. "
        "gpu-topo: for what its own device does, as in a run."
    )
    return Table(
        "Layers that wait when the code reaches them",
        ("criterion", "layers"),
        tuple(rows),
        ("criterion",),
        note,
    )


def candidates(facts: Facts) -> Table:
    """What else was tried."""
    found: dict[tuple[str, ...], None] = {}
    for candidate in facts.candidates:
        step = "-" if candidate.step_s is None else format_seconds(candidate.step_s)
        fullest = max(candidate.peak_bytes.values(), default=None)
        peak = "-" if fullest is None else format_bytes(fullest)
        found[candidate.placer, step, peak, candidate.note] = None  # several may look alike
    columns = ("placer", "predicted step", "largest peak", "note")
    shown = len(columns) if any(row[-1] for row in found) else len(columns) - 1
    rows = tuple([row[:shown] for row in found])
    return Table("Tried", columns[:shown], rows, ("placer", "note"))


def counters(measured: Timeline) -> Table:
    """What a run counted."""
    rows = []
    for name, count in measured.counters.items():
        value = format_bytes(count) if name.endswith("_bytes") else str(count)
        rows.append((name.replace("_", " "), value))
    return Table("Measured", ("what", "count"), tuple(rows), ("what",))


def hosts(plan: Plan, timeline: Timeline) -> list[Table]:
    """How busy the devices of each machine are, and what goes between machines; nothing of one machine."""
    cluster, step_s = plan.cluster, timeline.makespan_s
    if len(cluster.hosts) < 2:
        return []
    used, rows = set(plan.devices_used), []
    busy = {host.name: sum([timeline.busy_s(name) for name in host.devices]) for host in cluster.hosts}
    shown, rest = most(cluster.hosts, lambda host: busy[host.name])
    for host in shown:
        many = f"{len(used.intersection(host.devices))} of {len(host.devices)}"
        rows.append((host.name, many, format_share(busy[host.name], len(host.devices) * step_s)))
    sent: dict[tuple[str, str], list[int]] = {}
    for span in timeline.spans:
        ends = [cluster.host_of[end].name for end in span.where.split(">") if end in cluster.host_of]
        if span.kind == "transfer" and len(set(ends)) == 2:
            sent.setdefault((ends[0], ends[1]), []).append(span.size_bytes)
    ways, fewer = most(list(sent), lambda pair: sum(sent[pair]))
    links = [(f"{a} > {b}", str(len(sent[a, b])), format_bytes(sum(sent[a, b]))) for a, b in ways]
    columns, headings = ("host", "devices used", "computes"), ("from > to", "transfers", "bytes a step")
    note = "Computes: of the step, the mean of all devices of the host."
    more = f" And {len(rest)} more that compute less." if rest else ""
    left = f"And {len(fewer)} more with fewer bytes." if fewer else ""
    left = left if links else "Nothing goes there."
    return [
        Table("Hosts", columns, tuple(rows), columns[:1], note + more),
        Table("Between hosts", headings, tuple(links), headings[:1], left),
    ]
