"""A plan as text that a person reads in a minute: where, how full, how long, what travels."""

from collections.abc import Iterable
from io import StringIO

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from baechi.cost.transfer import tensors, transfer_s
from baechi.records.cluster import HOST
from baechi.records.device_map import map_from_devices
from baechi.records.plan import Plan
from baechi.units import format_bytes, format_seconds

_MODULES_SHOWN = 8
_EDGES_SHOWN = 8


def render(plan: Plan) -> RenderableType:
    """The report on a plan, for a `rich` console.

    Args:
        plan: the plan; it is simulated if it was not yet.
    """
    parts = [_headline(plan), _devices(plan), _placement(plan), _cut_edges(plan)]
    if plan.candidates:
        parts.append(_candidates(plan))
    return Group(*parts)


def to_text(plan: Plan, width: int = 110) -> str:
    """The report on a plan as plain text.

    Args:
        plan: the plan.
        width: columns.
    """
    console = Console(file=StringIO(), width=width, color_system=None)
    console.print(render(plan))
    file = console.file
    assert isinstance(file, StringIO)
    return file.getvalue()


def _headline(plan: Plan) -> Text:
    mode = "training" if plan.graph.training else "inference"
    model = plan.graph.graph.get("model", "model")
    layers = sum(1 for name in plan.device_of if plan.graph.nodes[name].get("kind", "layer") == "layer")
    step = format_seconds(plan.timeline.makespan_s)
    text = Text()
    text.append(f"{model}", style="bold")
    text.append(f", {mode}: {layers} layers and {len(plan.device_of) - layers} pieces of glue on ")
    text.append(f"{len(plan.devices_used)} of {len(plan.cluster)} devices, placed by {plan.placer}. ")
    text.append(f"Predicted step: {step}.", style="bold")
    return text


def _table(title: str, *columns: str, right: Iterable[str] = ()) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return table


def _devices(plan: Plan) -> Table:
    numbers = ("layers", "weights", "peak", "limit", "full", "busy", "of step")
    table = _table("Devices", "device", "kind", *numbers, right=numbers)
    timeline = plan.timeline
    for device in plan.cluster.devices:
        names = plan.order_on(device.name)
        weights = sum(plan.graph.amount(n, kind) for n in names for kind in ("param_bytes", "buffer_bytes"))
        peak = timeline.peak_bytes.get(device.name, 0)
        busy_s = timeline.busy_s(device.name)
        table.add_row(
            device.name,
            device.kind,
            str(len(names)),
            format_bytes(weights),
            format_bytes(peak),
            format_bytes(device.memory_bytes),
            _percent(peak, device.memory_bytes),
            format_seconds(busy_s),
            _percent(busy_s, timeline.makespan_s),
        )
    return table


def _placement(plan: Plan) -> Table:
    table = _table("Placement", "device", "modules")
    mapping = map_from_devices(plan.graph, plan.device_of)
    for device in plan.devices_used:
        modules = [module or "everything" for module, where in mapping.items() if where == device]
        shown = ", ".join(modules[:_MODULES_SHOWN])
        more = len(modules) - _MODULES_SHOWN
        table.add_row(device, f"{shown}, and {more} more" if more > 0 else shown)
    return table


def _cut_edges(plan: Plan) -> RenderableType:
    """What travels between devices, dearest first; each tensor once per target device."""
    cuts = []
    for tensor in tensors(plan.graph):
        home = plan.device_of.get(tensor.source, HOST)
        for target in sorted({plan.device_of[name] for name in tensor.consumers} - {home}):
            link = plan.cluster.link_between(home, target)
            cuts.append((transfer_s(link, tensor.size_bytes), tensor, home, target))
    if not cuts:
        return Text("Nothing travels between devices.\n")
    cuts.sort(key=lambda cut: (-cut[0], cut[1].source, cut[3]))
    total_bytes = sum(cut[1].size_bytes for cut in cuts)
    title = f"Cut edges: {len(cuts)} transfers forward, {format_bytes(total_bytes)}"
    table = _table(title, "output of", "from", "to", "size", "takes", right=("size", "takes"))
    for seconds, tensor, home, target in cuts[:_EDGES_SHOWN]:
        table.add_row(tensor.source, home, target, format_bytes(tensor.size_bytes), format_seconds(seconds))
    if len(cuts) > _EDGES_SHOWN:
        table.add_row(f"and {len(cuts) - _EDGES_SHOWN} more", "", "", "", "")
    return table


def _candidates(plan: Plan) -> Table:
    table = _table("Tried", "placer", "predicted step", "note", right=("predicted step",))
    for candidate in plan.candidates:
        step = "-" if candidate.step_s is None else format_seconds(candidate.step_s)
        table.add_row(candidate.placer, step, candidate.note)
    return table


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "-"
