"""What there is to say about a plan, as data: for the text, the page and JSON alike."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from baechi.cost.optimizers import optimizer_costs
from baechi.cost.transfer import tensors, transfer_s
from baechi.order.criteria import CRITERIA, waiting_layers
from baechi.order.launch_order import LaunchOrder
from baechi.records.cluster import HOST
from baechi.records.device import Device
from baechi.records.lazy_imports import lazy_import
from baechi.records.plan import Candidate, Plan
from baechi.records.timeline import Timeline
from baechi.report.critical import Stretch, critical_path
from baechi.report.dependencies import dependencies_bound_s
from baechi.report.fewer_devices import OneDevice, fewest_devices, on_one_device
from baechi.report.fold import fold
from baechi.report.reading import Reading, read
from baechi.report.verdict import Judged


@dataclass(frozen=True)
class DeviceFacts:
    """A device of the plan.

    Args:
        name, kind: which one.
        modules: what lies there, folded by module.
        layers, glue: how many.
        weight_bytes: parameters and buffers.
        grad_bytes, optimizer_bytes: in training, gradients of parameters, and what the optimizer keeps.
        kept_bytes: what autograd and the model's code keep; backward releases it as gradients arrive.
        accumulate: whether gradients of the step before are there, too (gradient accumulation).
        peak_bytes, limit_bytes: the most that it holds, and what it may.
        busy_s: how long it computes.
    """

    name: str
    kind: str
    modules: tuple[str, ...]
    layers: int
    glue: int
    weight_bytes: float
    grad_bytes: float
    optimizer_bytes: float
    kept_bytes: float
    accumulate: bool
    peak_bytes: int
    limit_bytes: int
    busy_s: float

    @property
    def passing_bytes(self) -> float:
        """The rest of the peak: outputs, copies from other devices, temporary memory of layers."""
        both = self.grad_bytes, self.kept_bytes
        turn = sum(both) if self.accumulate else max(both)
        return max(0.0, self.peak_bytes - self.weight_bytes - self.optimizer_bytes - turn)


@dataclass(frozen=True)
class Cut:
    """A tensor that travels.

    Args:
        source: the layer whose output it is, or an input.
        home, target: the devices.
        size_bytes: its size.
        seconds: how long it takes alone, in training with its gradient's way back.
    """

    source: str
    home: str
    target: str
    size_bytes: int
    seconds: float


@dataclass(frozen=True)
class Facts:
    """A plan, and what was predicted or measured of a step of it.

    Args:
        plan: the plan.
        measured: a step that was run, if there was one.
    """

    plan: Plan
    measured: Timeline | None = None

    @property
    def model(self) -> str:
        """The model's name."""
        return str(self.plan.graph.graph.get("model", "model"))

    @property
    def mode(self) -> str:
        """`"training"` or `"inference"`."""
        return "training" if self.plan.graph.training else "inference"

    @cached_property
    def layers(self) -> int:
        """How many layers there are."""
        return sum([device.layers for device in self.devices])

    @property
    def step_s(self) -> float:
        """The predicted step."""
        return self.plan.timeline.makespan_s

    @cached_property
    def one_device(self) -> OneDevice | None:
        """The step with all layers on one device; None if they are pinned to several."""
        return on_one_device(self.plan)

    @cached_property
    def bound_s(self) -> float:
        """A time that no plan of the graph on these devices can beat."""
        return float(lazy_import("shortest_step_s")(self.plan.graph, self.plan.cluster))

    @cached_property
    def verdict(self) -> str:
        """The plan in one sentence: gain, bound, limit."""
        chain_s = dependencies_bound_s(self.plan)
        one = self.one_device
        return Judged(self.plan, self.reading, self.path, one, self.bound_s, chain_s).sentence

    @cached_property
    def fewest_devices(self) -> int:
        """How many devices are as good as those that the plan uses."""
        return fewest_devices(self.plan)

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """What else was tried."""
        return self.plan.candidates

    @cached_property
    def devices(self) -> tuple[DeviceFacts, ...]:
        """All devices, in the cluster's order."""
        return tuple([_device(self.plan, device) for device in self.plan.cluster.devices])

    @cached_property
    def cuts(self) -> tuple[Cut, ...]:
        """What travels forward, dearest first; a tensor once for each device it goes to."""
        return tuple(sorted(_cuts(self.plan), key=lambda cut: -cut.seconds))  # equal ones in the code's order

    @cached_property
    def path(self) -> tuple[Stretch, ...]:
        """The critical path of the predicted step."""
        return critical_path(self.plan, self.plan.timeline)

    @cached_property
    def reading(self) -> Reading:
        """What bounds the predicted step, and what would make it faster."""
        return read(self.plan, self.plan.timeline, self.path)

    @cached_property
    def measured_path(self) -> tuple[Stretch, ...]:
        """The critical path of the measured step."""
        return () if self.measured is None else critical_path(self.plan, self.measured)

    @cached_property
    def measured_reading(self) -> Reading | None:
        """What bounds the measured step."""
        return None if self.measured is None else read(self.plan, self.measured, self.measured_path)

    @cached_property
    def waiting(self) -> Mapping[str, int]:
        """By criterion, how many layers wait when the code reaches them (with threads, one each)."""
        order = LaunchOrder.of(self.plan)
        return {criterion: len(waiting_layers(order, criterion)) for criterion in CRITERIA}

    def to_json(self) -> str:
        """The facts as JSON text."""
        return json.dumps({"baechi": "report", **self._body()}, indent=1) + "\n"

    def _body(self) -> dict[str, Any]:
        devices = [asdict(device) | {"passing_bytes": device.passing_bytes} for device in self.devices]
        body: dict[str, Any] = {
            "model": self.model,
            "mode": self.mode,
            "placer": self.plan.placer,
            "step_s": self.step_s,
            "verdict": self.verdict,
            "bound_s": self.bound_s,
            "one_device": None if self.one_device is None else asdict(self.one_device),
            "as_good_with": self.fewest_devices,
            "reading": asdict(self.reading),
            "devices": devices,
            "cuts": [asdict(cut) for cut in self.cuts],
            "critical_path": [
                {**asdict(stretch.span), "cause": stretch.cause, "idle_s": stretch.idle_s}
                for stretch in self.path
            ],
            "waiting": self.waiting,
            "candidates": [
                {"placer": c.placer, "step_s": c.step_s, "peak_bytes": dict(c.peak_bytes), "note": c.note}
                for c in self.candidates
            ],
        }
        if self.measured is not None and self.measured_reading is not None:
            body["measured"] = {
                "step_s": self.measured.makespan_s,
                "peak_bytes": dict(self.measured.peak_bytes),
                "counters": dict(self.measured.counters),
                "reading": asdict(self.measured_reading),
            }
        return body


def _device(plan: Plan, device: Device) -> DeviceFacts:
    names, graph = plan.order_on(device.name), plan.graph
    rows = [graph.costs(name) for name in names]
    layers = sum(costs.kind == "layer" for costs in rows)
    gradients = sum([float(costs.grad_bytes) for costs in rows]) if graph.training else 0.0
    return DeviceFacts(
        name=device.name,
        kind=device.kind,
        modules=tuple(str(part) for part in fold(graph, names)),
        layers=layers,
        glue=len(names) - layers,
        weight_bytes=sum([float(costs.param_bytes + costs.buffer_bytes) for costs in rows]),
        grad_bytes=gradients,
        optimizer_bytes=gradients * optimizer_costs(graph.graph.get("optimizer")).state_bytes,
        kept_bytes=sum([float(costs.held_bytes) for costs in rows])
        + (sum([float(costs.saved_bytes) for costs in rows]) if graph.training else 0.0),
        accumulate=bool(graph.graph.get("accumulate")),
        peak_bytes=plan.timeline.peak_bytes.get(device.name, 0),
        limit_bytes=device.memory_bytes,
        busy_s=plan.timeline.busy_s(device.name),
    )


def _cuts(plan: Plan) -> list[Cut]:
    cuts = []
    for tensor in tensors(plan.graph):
        home = plan.device_of.get(tensor.source, HOST)
        for target in sorted({plan.device_of[name] for name in tensor.consumers} - {home}):
            seconds = transfer_s(plan.cluster.link_between(home, target), tensor.size_bytes)
            if plan.graph.training and home != HOST:
                seconds += transfer_s(plan.cluster.link_between(target, home), tensor.size_bytes)
            cuts.append(Cut(tensor.source, home, target, tensor.size_bytes, seconds))
    return cuts
