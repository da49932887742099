"""Records in one line, or in a few: what `distribute` says at its end, and what `repr` returns."""

from itertools import groupby

from baechi.records.abstract import AbstractRecord
from baechi.records.cluster import Cluster
from baechi.records.device import by_kind
from baechi.records.graph import LayerGraph
from baechi.records.pipeline import Pipeline
from baechi.records.plan import Plan
from baechi.records.timeline import Timeline
from baechi.report import host_share
from baechi.report.fewer_devices import on_one_device, short_bytes
from baechi.report.pipeline.facts import PipelineFacts
from baechi.report.pipeline.unsplit import verdict
from baechi.report.words import plain
from baechi.units import counted, format_bytes, format_seconds, format_share

_NAMED = 3
"""So many devices are named in a line; of more, their number."""

_LINES = 8


def summary(record: Plan | Pipeline) -> str:
    """One line about a plan: its devices, its step beside that of one device, the fullest device.

    Of a pipeline, the step beside that without microbatches, and where they gain no time, why.
    """
    if isinstance(record, Pipeline):
        return _pipeline_summary(record)
    step = f"step {format_seconds(record.timeline.makespan_s)}{_against_one(record)}"
    parts = [step, *_fullest(record, record.timeline), *([_again(record)] if record.recompute else [])]
    return f"{_model(record.graph)} on {_where(record)}: {', '.join(parts)}{_by_the_host(record)}"


def _pipeline_summary(pipeline: Pipeline) -> str:
    plan, timeline, count = pipeline.plan, pipeline.timeline, pipeline.microbatches
    step = f"step {format_seconds(timeline.makespan_s)}{_against_unsplit(pipeline)}"
    high = count > 1 and timeline.source == "simulated"
    fullest = _fullest(plan, timeline, "at most " if high else "")
    parts = [step, *fullest, *([_again(plan)] if plan.recompute else [])]
    number = f"{count} microbatch{'es' * (count != 1)}, {pipeline.rule}"
    told = verdict(PipelineFacts(pipeline)).rstrip(".")
    line = f"{_model(plan.graph)} on {_where(plan)} in {number}: {', '.join(parts)}{_by_the_host(pipeline)}"
    return f"{line}; {told}" if told else line


def _by_the_host(record: Plan | Pipeline) -> str:
    """That the host bounds the step, with its share and what would lift it; empty if it does not."""
    plan = record if isinstance(record, Plan) else record.plan
    timeline, used = record.timeline, plan.devices_used
    if not host_share.bounds(timeline, used):
        return ""
    return f"; the host is the limit: {host_share.share(timeline, used)} ({host_share.LIFTED} would help)"


def describe(record: AbstractRecord) -> str:
    """A record in a few lines, without simulating anything."""
    if isinstance(record, Plan):
        lines = _plan(record)
    elif isinstance(record, Pipeline):
        lines = _pipeline(record)
    elif isinstance(record, Cluster):
        lines = _cluster(record)
    elif isinstance(record, LayerGraph):
        lines = _graph(record)
    elif isinstance(record, Timeline):
        lines = _timeline(record)
    else:
        return object.__repr__(record)
    return "\n  ".join(map(plain, lines))


def _against_one(plan: Plan) -> str:
    """What the step would be on one device."""
    if len(plan.devices_used) < 2:
        return ""
    one = on_one_device(plan)
    if one is None:
        return ""
    if one.short_bytes:
        return f" (no single device holds it: {one.device} is short of {format_bytes(one.short_bytes)})"
    return f" instead of {format_seconds(one.step_s)} on one device"


def _against_unsplit(pipeline: Pipeline) -> str:
    """What the step would be without microbatches."""
    plan = pipeline.unsplit
    if plan is None:
        return ""
    if short_bytes(plan):
        return " (no plan without microbatches fits)"
    return f" instead of {format_seconds(plan.timeline.makespan_s)} without microbatches"


def _where(plan: Plan) -> str:
    used = plan.devices_used
    where = " and ".join(used) if len(used) < _NAMED else ", ".join(used)
    kinds = by_kind(plan.cluster.devices)
    where = where if len(used) <= _NAMED else f"{len(used)} of {len(plan.cluster)} devices ({kinds})"
    return where or "no device"


def _fullest(plan: Plan, timeline: Timeline, how: str = "") -> list[str]:
    """The fullest of the devices that run something."""
    peaks, devices = timeline.peak_bytes, plan.cluster.devices
    full = {device.name: peaks.get(device.name, 0) / max(1, device.memory_bytes) for device in devices}
    fullest = max(plan.devices_used if peaks else (), key=full.__getitem__, default=None)
    return [] if fullest is None else [f"fullest {_memory(plan, timeline, fullest, how)}"]


def _plan(plan: Plan) -> list[str]:
    where = f"{len(plan.devices_used)} of {len(plan.cluster)} devices"
    lines = [f"Plan by {plan.placer}: {_model(plan.graph)} on {where}"]
    known = plan.dry is not None or "timeline" in vars(plan)
    if known:
        lines[0] += f", step {format_seconds(plan.timeline.makespan_s)} ({plan.timeline.source})"
    devices = []
    for device in plan.cluster.devices:
        layers, operations = _counts(plan.graph, plan.order_on(device.name))
        limit = f"{device.name}, {format_bytes(device.memory_bytes)}"
        held = _memory(plan, plan.timeline, device.name) if known else limit
        devices.append(f"{held}: {counted(layers, 'layer')}, {counted(operations, 'functional op')}")
    lines += [_again(plan)] if plan.recompute else []
    return [*lines, *_few(devices, "devices")]


def _again(plan: Plan) -> str:
    """Which modules run again in backward."""
    names = plan.recompute
    where = ", ".join(names) if len(names) <= _NAMED else f"{names[0]}, {names[1]}, ..., {names[-1]}"
    return f"backward runs {counted(len(names), 'module')} again ({where})"


def _pipeline(pipeline: Pipeline) -> list[str]:
    parts = f"{pipeline.microbatches} microbatch{'es' * (pipeline.microbatches != 1)} by {pipeline.rule}"
    lines = [f"Pipeline of {parts}: {_model(pipeline.plan.graph)}, {counted(pipeline.units.whole, 'stage')}"]
    if pipeline.dry is not None or "timeline" in vars(pipeline):
        timeline = pipeline.timeline
        lines[0] += f", step {format_seconds(timeline.makespan_s)} ({timeline.source})"
    devices = []
    for name, live in pipeline.in_flight.items():
        stages = sum([stage.device == name for stage in pipeline.stages[: pipeline.units.whole]])
        devices.append(f"{name}: {counted(stages, 'stage')}, {live} in flight")
    return [*lines, *_few(devices, "devices")]


def _cluster(cluster: Cluster) -> list[str]:
    lines = [f"Cluster of {counted(len(cluster), 'device')}{', emulated' * cluster.emulated}"]
    devices = []
    for (kind, size), group in groupby(cluster.devices, lambda device: (device.kind, device.memory_bytes)):
        names = [device.name for device in group]
        which = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
        devices.append(f"{which}: {kind}, {format_bytes(size)}")
    links = f"links: {_rate(cluster)}"
    if cluster.hosts:
        links = f"{counted(len(cluster.hosts), 'host')}; between them {_rate(cluster)}"
    if cluster.links:
        links += f"; {len(cluster.links)} pairs have their own"
    return [*lines, *_few(devices, "kinds"), links]


def _rate(cluster: Cluster) -> str:
    link = cluster.link
    return f"{format_bytes(link.bytes_per_s)}/s after {format_seconds(link.latency_s)}"


def _graph(graph: LayerGraph) -> list[str]:
    layers, operations = _counts(graph, tuple(graph.placed()))
    inputs = len(graph) - layers - operations
    nodes = (counted(layers, "layer"), counted(operations, "functional op"), counted(inputs, "input"))
    mode = "training" if graph.training else "inference"
    weights = format_bytes(graph.total("param_bytes") + graph.total("buffer_bytes"))
    times = "measured" if graph.graph.get("measured") else "estimated"
    return [
        f"LayerGraph of {_model(graph)}, {mode}",
        ", ".join([*nodes, counted(graph.number_of_edges(), "edge")]),
        f"{weights} of weights; times are {times}",
    ]


def _timeline(timeline: Timeline) -> list[str]:
    peaks = [f"{name}: peak {format_bytes(size)}" for name, size in timeline.peak_bytes.items()]
    step = format_seconds(timeline.makespan_s)
    kind = f"{timeline.source}, {timeline.mode}{' (no backward ran)' * (timeline.mode == 'inference')}"
    return [f"Timeline, {kind}: step {step}, {len(timeline.spans)} spans", *_few(peaks, "devices")]


def _counts(graph: LayerGraph, names: tuple[str, ...]) -> tuple[int, int]:
    """How many of some nodes are layers, and how many functional ops."""
    layers = sum([graph.costs(name).kind == "layer" for name in names])
    return layers, len(names) - layers


def _model(graph: LayerGraph) -> str:
    return plain(str(graph.graph.get("model", "model")))


def _memory(plan: Plan, timeline: Timeline, name: str, how: str = "") -> str:
    peak, limit = timeline.peak_bytes.get(name, 0), plan.cluster.device(name).memory_bytes
    return f"{name}, {how}{format_bytes(peak)} of {format_bytes(limit)} ({format_share(peak, limit)})"


def _few(lines: list[str], what: str) -> list[str]:
    return lines if len(lines) <= _LINES else [*lines[:_LINES], f"and {len(lines) - _LINES} more {what}"]
