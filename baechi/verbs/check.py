"""One model run three ways: on one device, in the code's order, in the planner's order.

A model that runs as programs (`compile=`): on one device, as its code is written, as programs.
"""

import copy
import json
import math
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from baechi.records.inputs import Inputs
from baechi.records.plan import Plan
from baechi.records.timeline import Timeline
from baechi.run import assign, last_step, reordering, restore, runtime_of
from baechi.run.binding import binding_of
from baechi.run.dry.loop import optimizer_for
from baechi.torchlib.random_state import random_state_kept
from baechi.torchlib.tensors.pytree import tensors_in
from baechi.units import format_bytes, format_seconds

_PROGRAMS = "programs"


@dataclass(frozen=True)
class Ran:
    """One way to run, and what came of it.

    Args:
        name: `"one device"`, `"reordering off"` or `"reordering on"`; with `compile=` `"as written"`,
            `"programs"` (on an emulated cluster torch's own kernels) and `"inductor"` (not emulated).
        timeline: what was measured; None where nothing is.
        launched: by device, its layers in the order in which they launched.
        forced: what had to launch before its turn, with the reason and the line of code.
        deferred: how many layers and pieces of glue waited.
        programs: how many programs ran in the call; a model that is not captured runs none.
    """

    name: str
    timeline: Timeline | None
    launched: Mapping[str, tuple[str, ...]]
    forced: tuple[str, ...]
    deferred: int
    programs: int = 0

    def body(self) -> dict[str, Any]:
        """The run as JSON-able data."""
        return {
            "name": self.name,
            "timeline": None if self.timeline is None else self.timeline.body(),
            "launched": {device: list(layers) for device, layers in self.launched.items()},
            "forced": list(self.forced),
            "deferred": self.deferred,
            "programs": self.programs,
        }


@dataclass(frozen=True)
class Check:
    """Whether three ways to run a model give the same, and what each takes.

    Args:
        ran: the three ways.
        equal: whether outputs and buffers are the same bit for bit.
        output_difference: the largest difference of any output or buffer, relative to the largest of them (a
            loss of microbatches is a sum, which rounds otherwise); infinite where one run made others.
        gradient_difference: the largest difference of any gradient, relative to the largest gradient;
            infinite where one run made gradients that another did not.
        in_plan_order: whether each device launched its layers as the plan has them.
    """

    ran: tuple[Ran, ...]
    equal: bool
    output_difference: float
    gradient_difference: float
    in_plan_order: bool

    def __str__(self) -> str:
        same = "the same outputs and buffers"
        if not self.equal:
            same = f"outputs and buffers differ by at most {self.output_difference:.1e} of the largest"
        order = "in the plan's order" if self.in_plan_order else "not wholly in the plan's order"
        compiled = any(one.name == _PROGRAMS for one in self.ran)
        lines = [f"{same}; gradients differ by at most {self.gradient_difference:.1e} of the largest"]
        lines[0] += "" if compiled else f"; with reordering on, layers launch {order}"
        columns = f"{'':>10}{'programs':>10}" if compiled else f"{'waited':>10}{'forced':>10}"
        lines += [f"{'':16}{'step':>12}{columns}   peak"]
        for one in self.ran:
            step, peaks = "-", "-"
            if one.timeline is not None:
                step = format_seconds(one.timeline.makespan_s)
                peaks = ", ".join(format_bytes(size) for size in one.timeline.peak_bytes.values())
            counts = f"{'':>10}{one.programs:>10}" if compiled else f"{one.deferred:>10}{len(one.forced):>10}"
            lines.append(f"{one.name:16}{step:>12}{counts}   {peaks}")
        forced = dict.fromkeys(line for one in self.ran for line in one.forced)
        lines += ["forced:", *(f"  {line}" for line in forced)] if forced else []
        return "\n".join(lines)

    def body(self) -> dict[str, Any]:
        """The check as JSON-able data; what is not finite is None, since JSON has no such number."""
        return {
            "equal": self.equal,
            "output_difference": _finite(self.output_difference),
            "gradient_difference": _finite(self.gradient_difference),
            "in_plan_order": self.in_plan_order,
            "ran": [one.body() for one in self.ran],
        }

    def to_json(self) -> str:
        """The check as JSON text: what the table says, and launch orders and timelines in full."""
        return json.dumps({"baechi": "check", **self.body()}, indent=1) + "\n"


def check(model: nn.Module, inputs: Any, *, seed: int = 0) -> Check:
    """Run a distributed model three ways, each on a copy of it, and compare.

    Args:
        model: a distributed model; it is left alone. On an emulated cluster call this outside of
            `with cluster:`, which it opens for each run.
        inputs: as `distribute` takes them; one example.
        seed: of the random numbers, the same for each run.

    Returns:
        The check; `print` shows it as a table, `to_json()` gives all of it. In training mode a
        backward of the sum of all outputs is part of the step. Steps and peaks are those of a second step,
        with the state of the optimizer that the plan counts.

    Raises:
        BaechiError: the model is not distributed, or a cluster is emulated already.
    """
    plan = runtime_of(model).plan
    given = Inputs.of(inputs)
    one = _whole(copy.deepcopy(model), plan)
    results = [_run("one device", one, given, seed)]
    captures = runtime_of(model).captures
    for name, on in (("reordering off", False), ("reordering on", True)) if captures is None else ():
        copied = copy.deepcopy(model)
        with reordering(copied, on):
            results.append(_run(name, copied, given, seed))
    if captures is not None:
        written = copy.deepcopy(model)
        runtime_of(written).captures = None
        results.append(_run("as written", written, given, seed))
        results.append(_run(_PROGRAMS, copy.deepcopy(model), given, seed))
        if captures.options.backend == "inductor" and plan.cluster.emulated:  # which sees none of its kernels
            results.append(_run("inductor", copy.deepcopy(model), given, seed, emulates=False))
    (_, first), others = results[0], [kept for _, kept in results[1:]]
    return Check(
        ran=tuple([ran for ran, _ in results]),
        equal=all(_equal(a, b) for other in others for a, b in zip(first[:-1], other[:-1], strict=True)),
        output_difference=max(
            _difference(a, b) for other in others for a, b in zip(first[:-1], other[:-1], strict=True)
        ),
        gradient_difference=max(_difference(first[-1], other[-1]) for other in others),
        in_plan_order=_in_order(plan, results[-1][0]),
    )


def _whole(model: nn.Module, plan: Plan) -> nn.Module:
    """The model on one device of the first one's kind; on the host if a real one cannot hold it."""
    restore(model)
    if not plan.cluster.emulated:
        with suppress(torch.OutOfMemoryError):
            return assign(model, Plan.from_device_map(plan.graph, plan.cluster, {"": plan.cluster.names[0]}))
        return model
    memory_bytes = 2 * sum(device.memory_bytes for device in plan.cluster.devices)
    kind = plan.cluster.devices[0]
    device = type(kind)(**{**kind.body(), "name": "cpu:0", "memory_bytes": memory_bytes})
    cluster = replace(plan.cluster, devices=(device,), links={}, hosts=())
    everywhere = {node: device.name for node in plan.device_of}
    return assign(model, Plan(plan.graph, cluster, everywhere, plan.graph.code_order()))


def _run(name: str, model: nn.Module, inputs: Inputs, seed: int, *, emulates: bool = True) -> tuple[Ran, Any]:
    binding = binding_of(model)
    cluster = binding.runtime.plan.cluster if binding is not None and emulates else None
    emulated: AbstractContextManager[Any] = (
        cluster if cluster is not None and cluster.emulated else nullcontext()
    )
    measured = copy.deepcopy(model) if cluster is not None and cluster.emulated else None
    with random_state_kept(), emulated:
        torch.manual_seed(seed)
        outputs = _step(model, inputs)
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    kept = [t.detach() for t in outputs], [b.detach() for b in model.buffers()], grads
    timeline = None if measured is None else _measured(measured, inputs, seed)
    if binding is None:
        return Ran(name, None, {}, (), 0), kept
    runtime = binding.runtime
    launched: dict[str, list[str]] = {}
    for layer in runtime.launched:
        launched.setdefault(runtime.plan.device_of.get(layer, ""), []).append(layer)
    orders = {device: tuple(layers) for device, layers in launched.items()}
    forced = tuple([str(forced) for forced in runtime.forced])
    counts = runtime.counts
    return Ran(name, timeline, orders, forced, counts.get("deferred", 0), counts.get("programs", 0)), kept


def _step(model: nn.Module, inputs: Inputs) -> list[torch.Tensor]:
    """Run the model, in training mode with backward; what it returns."""
    with torch.set_grad_enabled(model.training):
        outputs = list(tensors_in(model(*inputs.args, **inputs.kwargs)))
        trained = [t.float().sum() for t in outputs if t.requires_grad and t.is_floating_point()]
        if trained and model.training:
            torch.autograd.backward(trained)  # outputs that stay may lie on several devices
    return outputs


def _measured(model: nn.Module, inputs: Inputs, seed: int) -> Timeline:
    """The second of two steps on an emulated cluster, so that the optimizer has its state."""
    plan = runtime_of(model).plan
    with random_state_kept(), plan.cluster:
        torch.manual_seed(seed)
        optimizer = plan.graph.graph.get("optimizer") if model.training else None
        updates = optimizer_for(optimizer, model, foreach=None)
        for _ in range(2):
            model.zero_grad()
            held = _step(model, inputs)  # as a training loop holds the loss
            if updates is not None:
                updates.step()
            del held
        return last_step(model)


def _in_order(plan: Plan, ran: Ran) -> bool:
    if not ran.launched:  # nothing waits: the code's order is the plan's
        return True
    place = {layer: index for index, layer in enumerate(plan.order)}
    known = [[place[layer] for layer in layers if layer in place] for layers in ran.launched.values()]
    return all(places == sorted(places) for places in known)


def _equal(ones: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    return len(ones) == len(others) and all(
        torch.equal(one.cpu().isnan(), other.cpu().isnan())
        and torch.equal(one.cpu().nan_to_num(), other.cpu().nan_to_num())
        for one, other in zip(ones, others, strict=True)
    )


def _difference(ones: list[torch.Tensor], others: list[torch.Tensor]) -> float:
    if [one.shape for one in ones] != [other.shape for other in others]:
        return math.inf
    largest = most = 0.0
    for one, other in zip(ones, others, strict=True):
        a, b = (tensor.cpu().to(torch.complex128) for tensor in (one, other))
        if not torch.equal(a.isnan(), b.isnan()):
            return math.inf
        if a.numel():
            a, b = a.nan_to_num(), b.nan_to_num()
            largest, most = max(largest, float(a.abs().max())), max(most, float((a - b).abs().max()))
    return most / largest if largest else most


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None
