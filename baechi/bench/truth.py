"""Whether predictions are true: the simulated step beside the emulated run, in seconds and in bytes.

Every model of `runnable` by every placer on two and on four emulated devices, in inference and in
training. Two kinds of devices: on one the host is slower than kernels this small (it issues one in
five microseconds), on the other kernels are slower than the host. Both clocks are logical, so the
table is the same on every machine.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import torch
from rich.table import Table
from torch import nn

from baechi.bench.figures import Figures, table_of
from baechi.bench.models.runnable import Runnable, loss_of, runnables
from baechi.records.cluster import Cluster
from baechi.records.graph import LayerGraph
from baechi.records.plan import Plan
from baechi.records.timeline import Timeline
from baechi.verbs.distribute import assign
from baechi.verbs.planning import place
from baechi.verbs.profiling import profile

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


@dataclass(frozen=True)
class Row:
    """A model, as it was predicted and as it ran.

    Args:
        model: its name.
        kind: of which kind the devices are.
        devices: how many there are.
        placer: who placed it.
        mode: `"inference"`, or the optimizer that trains it.
        predicted_s: the simulator's step.
        measured_s: the emulated one.
        predicted_bytes: peaks, by device.
        measured_bytes: peaks, by device.
    """

    model: str
    kind: str
    devices: int
    placer: str
    mode: str
    predicted_s: float
    measured_s: float
    predicted_bytes: tuple[int, ...]
    measured_bytes: tuple[int, ...]

    @property
    def time_off(self) -> float:
        """By how much the step is predicted longer than it is, as a part of what it is."""
        return self.predicted_s / self.measured_s - 1

    @property
    def bytes_off(self) -> tuple[float, ...]:
        """By how much peaks are predicted higher than they are, by device; those that hold something."""
        pairs = zip(self.predicted_bytes, self.measured_bytes, strict=True)
        return tuple([said / held - 1 if held else float("inf") for said, held in pairs if said or held])


def measure(*, quick: bool = False) -> Figures:
    """Predict, run, and show.

    Args:
        quick: two models, one cluster and two placers.
    """
    rows = list(truth(quick=quick))
    body = [asdict(row) | {"time_off": row.time_off, "bytes_off": row.bytes_off} for row in rows]
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


def emulated(
    plan: Plan,
    runnable: Runnable,
    mode: str,
    *,
    run: Callable[[nn.Module, Plan], nn.Module] = assign,
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
    shown = table_of(title, ("mode", "devices are"), ("rows", "step", "peaks", "off"))
    for mode in MODES:
        for kind in KINDS:
            chosen = [row for row in rows if (row.mode, row.kind) == (mode, kind)]
            if chosen:
                steps, peaks = [r.time_off for r in chosen], [off for r in chosen for off in r.bytes_off]
                outside = sum([not is_true(row) for row in chosen])
                shown.add_row(mode, kind, str(len(chosen)), _spread(steps), _spread(peaks), str(outside))
    return shown


def table(rows: list[Row]) -> Table:
    """The rows as a table.

    Args:
        rows: what was predicted and measured.
    """
    title = "Predicted and measured steps in microseconds, and peaks, predicted over measured in percent"
    shown = table_of(
        title, ("model", "on", "placer", "mode"), ("predicted", "measured", "step", "peaks by device")
    )
    for row in rows:
        steps = [f"{seconds * 1e6:.1f}" for seconds in (row.predicted_s, row.measured_s)]
        peaks = " ".join([f"{off * 100:+.1f}" for off in row.bytes_off])
        off = f"{row.time_off * 100:+.1f}{'' if is_true(row) else ' *'}"
        shown.add_row(row.model, f"{row.devices} {row.kind}", row.placer, row.mode, *steps, off, peaks)
    return shown


def is_true(row: Row) -> bool:
    """Whether a step is within 2 % of what was predicted, and no peak above or more than 5 % below.

    Args:
        row: a row.
    """
    pairs = zip(row.predicted_bytes, row.measured_bytes, strict=True)
    near = abs(row.predicted_s - row.measured_s) <= 0.02 * row.measured_s
    return near and all(held <= said <= 1.05 * held for said, held in pairs)


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
    said, runs = plan.timeline, [emulated(plan, runnable, way) for way in _WAYS.get(mode, (mode,))]
    return Row(
        model=runnable.name,
        kind=cluster.devices[0].kind,
        devices=len(cluster),
        placer=placer,
        mode=mode,
        predicted_s=said.makespan_s,
        measured_s=runs[0].makespan_s,
        predicted_bytes=tuple([said.peak_bytes[name] for name in cluster.names]),
        measured_bytes=tuple([max([ran.peak_bytes[name] for ran in runs]) for name in cluster.names]),
    )


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
        loss_of(outputs).backward()
        optimizer.step()

    return step


def _called(model: nn.Module, inputs: Any) -> Any:
    return model(**inputs) if isinstance(inputs, dict) else model(*inputs)
