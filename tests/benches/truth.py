"""Whether predictions are true: the simulated step and the dry run beside the emulated run.

Every model of `runnable` by every placer on two and on four emulated devices, in inference and in
training. Two kinds of devices: on one the host is slower than kernels this small (it issues one in
five microseconds), on the other kernels are slower than the host. Both clocks are logical, so the
table is the same on every machine.

The dry run judges plans, so it has to be exact. The simulator guides placers: it may be a little off, and
errs on the high side in memory.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from statistics import median
from typing import Any

import torch
from rich.table import Table
from torch import nn

from baechi.records.cluster import Cluster
from baechi.records.graph import LayerGraph
from baechi.records.plan import Plan
from baechi.records.timeline import Timeline
from baechi.run.dry.loop import losses_of
from baechi.verbs.distribute import assign
from baechi.verbs.dry_run import dry_run
from baechi.verbs.plans import place
from baechi.verbs.profile import profile
from benches.figures import Figures, table_of
from benches.models.runnable import Runnable, runnables
from benches.predicted import AIMS, Off, Row, is_true

PLACERS = ("m-topo", "m-etf", "m-sct", "auto", "random:1")
MODES = ("inference", "sgd", "adam")
KINDS = ("A100-80GB", "CPU")
DEVICES = (2, 4)

_MEMORY = "64GiB"
_STEPS = 2  # the first one makes the optimizer's state

_OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda weights: torch.optim.SGD(weights, lr=1e-3),
    "adam": lambda weights: torch.optim.Adam(weights, lr=1e-3, foreach=True),
    "adam, one by one": lambda weights: torch.optim.Adam(weights, lr=1e-3, foreach=False),
}

_WAYS = {"adam": ("adam", "adam, one by one")}
"""What a mode stands for: a predicted peak is that of the dearer way, device by device."""


def measure(*, quick: bool = False) -> Figures:
    """Predict, run, and show.

    Args:
        quick: two models, one cluster and two placers.
    """
    rows = list(truth(quick=quick))
    body = [asdict(row) | {"simulated": asdict(row.simulated), "dry": asdict(row.dry)} for row in rows]
    return Figures((summary(rows), table(rows)), body)


def truth(*, quick: bool = False) -> Iterator[Row]:
    """Predict and run one model after the other.

    Args:
        quick: two models, one cluster and two placers.

    Yields:
        One row for each way to place and to run a model.
    """
    for runnable in runnables(quick=quick):
        for kind in KINDS[:1] if quick else KINDS:
            graphs = {training: profiled(runnable, kind, training) for training in (False, True)}
            for devices in DEVICES[:1] if quick else DEVICES:
                cluster = Cluster.virtual(devices, memory=_MEMORY, like=kind)
                for placer in ("m-etf", "random:1") if quick else PLACERS:
                    for mode in MODES:
                        yield row_of(runnable, graphs[mode != "inference"], cluster, placer, mode)


_AS_PLANNED = partial(assign, reorder=True)
"""Makes a model follow a plan, its order included."""


def emulated(
    plan: Plan,
    runnable: Runnable,
    mode: str,
    *,
    run: Callable[[nn.Module, Plan], nn.Module] = _AS_PLANNED,
    steps: int = _STEPS,
) -> Timeline:
    """Run a plan on its emulated cluster.

    Args:
        plan: a plan for an emulated cluster.
        runnable: the model that it is for.
        mode: `"inference"`, or the optimizer that trains it, and how.
        run: makes the model follow the plan.
        steps: how many.

    Returns:
        The last of the steps, the optimizer's step included, each begun when the devices were idle.
    """
    model = run(runnable.build().train(mode != "inference"), plan)
    inputs = runnable.inputs()
    step = _training(model, mode) if mode != "inference" else _inference(model)
    with plan.cluster:
        for _ in range(steps):
            plan.cluster.emulation.synchronize()
            step(inputs)
        last: Timeline = plan.cluster.emulation.timeline()
    return last


def summary(rows: list[Row]) -> Table:
    """The rows by mode and kind of device.

    Args:
        rows: what was predicted and measured.
    """
    title = "Predicted over measured, in percent: the middle row, and the two outermost"
    shown = table_of(title, ("by", "mode", "devices are"), ("rows", "step", "peaks", "off"))
    for by in AIMS:
        for mode in MODES:
            for kind in KINDS:
                chosen = [row for row in rows if (row.mode, row.kind) == (mode, kind)]
                offs = [getattr(row, by) for row in chosen]
                if offs:
                    steps, peaks = [off.time for off in offs], [peak for off in offs for peak in off.peaks]
                    outside = sum([not is_true(row, by) for row in chosen])
                    figures = str(len(offs)), _spread(steps), _spread(peaks), str(outside)
                    shown.add_row(by, mode, kind, *figures)
    return shown


def table(rows: list[Row]) -> Table:
    """The rows as a table.

    Args:
        rows: what was predicted and measured.
    """
    title = "Steps in microseconds, and predictions over measured ones in percent; peaks by device"
    shown = table_of(
        title,
        ("model", "on", "placer", "mode"),
        ("measured", "simulated", "step", "peaks", "dry run", "step", "peaks"),
    )
    for row in rows:
        figures = [f"{row.measured_s * 1e6:.1f}"]
        for by, step_s in (("simulated", row.simulated_s), ("dry", row.dry_s)):
            off: Off = getattr(row, by)
            star = "" if is_true(row, by) else " *"
            peaks = " ".join([f"{peak * 100:+.1f}" for peak in off.peaks])
            figures += [f"{step_s * 1e6:.1f}", f"{off.time * 100:+.1f}{star}", peaks]
        shown.add_row(row.model, f"{row.devices} {row.kind}", row.placer, row.mode, *figures)
    return shown


def _spread(values: list[float]) -> str:
    return " / ".join([f"{value * 100:+.1f}" for value in (median(values), min(values), max(values))])


def profiled(runnable: Runnable, kind: str, training: bool) -> LayerGraph:
    """The layer graph of a model, its times from datasheets.

    Args:
        runnable: the model.
        kind: of which kind devices will be.
        training: whether its costs are those of training.
    """
    return profile(
        runnable.build().train(training),
        runnable.inputs(),
        cluster=Cluster.virtual(1, like=kind),
        training=training,
        source="estimate",
    )


def row_of(runnable: Runnable, graph: LayerGraph, cluster: Cluster, placer: str, mode: str) -> Row:
    """Predict one way to place and to run a model, and run it.

    Args:
        runnable: the model.
        graph: its graph.
        cluster: emulated devices.
        placer: who places it.
        mode: `"inference"`, or the optimizer that trains it.
    """
    plan = place(graph, cluster, placer, optimizer=None if mode == "inference" else mode)
    ways = _WAYS.get(mode, (mode,))
    said, runs = plan.timeline, [emulated(plan, runnable, way) for way in ways]
    dry = [_dry(plan, runnable, way) for way in ways]
    return Row(
        model=runnable.name,
        kind=cluster.devices[0].kind,
        devices=len(cluster),
        placer=placer,
        mode=mode,
        simulated_s=said.makespan_s,
        dry_s=dry[0].makespan_s,
        measured_s=runs[0].makespan_s,
        simulated_bytes=_peaks([said], cluster),
        dry_bytes=_peaks(dry, cluster),
        measured_bytes=_peaks(runs, cluster),
    )


def _peaks(timelines: list[Timeline], cluster: Cluster) -> tuple[int, ...]:
    return tuple([max([timeline.peak_bytes[name] for timeline in timelines]) for name in cluster.names])


def _dry(plan: Plan, runnable: Runnable, mode: str) -> Timeline:
    model = runnable.build()
    optimizer = _OPTIMIZERS[mode](model.parameters()) if mode != "inference" else None
    return dry_run(model, runnable.inputs(), plan, optimizer=optimizer, reorder=True)


def _inference(model: nn.Module) -> Callable[[Any], None]:
    def step(inputs: Any) -> None:
        with torch.no_grad():
            _called(model, inputs)

    return step


def _training(model: nn.Module, mode: str) -> Callable[[Any], None]:
    optimizer = _OPTIMIZERS[mode](model.parameters())

    def step(inputs: Any) -> None:
        optimizer.zero_grad()
        outputs = _called(model, inputs)  # held, as training loops do
        torch.autograd.backward(losses_of(outputs))
        optimizer.step()

    return step


def _called(model: nn.Module, inputs: Any) -> Any:
    return model(**inputs) if isinstance(inputs, dict) else model(*inputs)
