"""What each term of the simulator's model is worth: predictions without it, beside a dry run.

A term is a set of attributes of the layer graph. Each plan is made from the whole graph and run dry once;
then it is simulated without one term after the other, and without all of them. A term that moves no
figure out of the aim is not worth its code.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from rich.table import Table

from baechi.records.cluster import Cluster
from baechi.records.graph import LayerGraph
from baechi.records.plan import Plan
from baechi.records.timeline import Timeline
from baechi.verbs.dry_run import dry_run
from baechi.verbs.plans import place, simulate
from baechi.verbs.profile import profile
from benches.figures import Figures, table_of
from benches.models.runnable import Runnable, runnables

TERMS: Mapping[str, tuple[str, ...]] = {
    "forward's own bytes": ("forward_temp_bytes",),
    "what backward adds": ("backward_rise_bytes",),
    "what outlives backward": ("lasting_bytes",),
    "what is kept for readers": ("lent_bytes",),
    "variables": ("held_until",),
    "the host": ("host_forward_s", "host_backward_s"),
}
"""By term, the attributes that say it."""

ALL = "all of these"

_PLACERS = {"m-etf": 2, "auto": 2, "random:1": 4}
"""On how many devices each places."""

_KINDS = ("A100-80GB", "CPU")
_MEMORY = "64GiB"
_BY_VALUES = {"mixtral"}
"""They decide by activations, which a dry run has not."""

_OPTIMIZERS: dict[str, tuple[Callable[[Any], torch.optim.Optimizer], ...]] = {
    "inference": (),
    "sgd": (lambda weights: torch.optim.SGD(weights, lr=1e-3),),
    "adam": (
        lambda weights: torch.optim.Adam(weights, lr=1e-3, foreach=True),
        lambda weights: torch.optim.Adam(weights, lr=1e-3, foreach=False),
    ),
}


@dataclass(frozen=True)
class Row:
    """A step without a term, predicted beside a dry run.

    Args:
        removed: the term; `""` if none.
        model: its name.
        kind: of which kind the devices are.
        placer: who placed it.
        mode: `"inference"`, or the optimizer that trains it.
        step_off: by how much the step is predicted longer than it is, as a part of what it is.
        peaks_off: the same of peaks, by device; of those that hold something.
    """

    removed: str
    model: str
    kind: str
    placer: str
    mode: str
    step_off: float
    peaks_off: tuple[float, ...]


def measure(*, quick: bool = False) -> Figures:
    """Predict without each term, and show what is left of the accuracy.

    Args:
        quick: two models, one kind of devices and one placer.
    """
    rows = list(ablation(quick=quick))
    return Figures((summary(rows),), [asdict(row) for row in rows])


def ablation(*, quick: bool = False, models: Iterable[Runnable] | None = None) -> Iterator[Row]:
    """Place and run dry one model after the other, and simulate each plan without each term.

    Args:
        quick: two models, one kind of devices and one placer.
        models: other models.

    Yields:
        For each way to place and to run a model, a row for each term, and one with nothing removed.
    """
    removed = {"": (), **TERMS, ALL: tuple([name for names in TERMS.values() for name in names])}
    for runnable in models if models is not None else runnables(quick=quick):
        if runnable.name in _BY_VALUES:
            continue
        for kind in _KINDS[:1] if quick else _KINDS:
            graphs = {training: _profiled(runnable, kind, training) for training in (False, True)}
            for placer in ("m-etf",) if quick else _PLACERS:
                cluster = Cluster.virtual(_PLACERS[placer], memory=_MEMORY, like=kind)
                for mode in _OPTIMIZERS:
                    training = mode != "inference"
                    plan = place(graphs[training], cluster, placer, optimizer=mode if training else None)
                    ran = _run_dry(runnable, plan, mode)
                    for term, names in removed.items():
                        said = simulate(replace(plan, graph=without(plan.graph, names)))
                        offs = _step_off(said, ran), _peaks_off(said, ran)
                        yield Row(term, runnable.name, kind, placer, mode, *offs)


def without(graph: LayerGraph, names: Iterable[str]) -> LayerGraph:
    """A copy of a graph without some attributes of nodes.

    Args:
        graph: the layer graph.
        names: of the attributes.
    """
    copy = LayerGraph.from_networkx(graph)
    for attributes in copy.nodes.values():
        for name in names:
            attributes.pop(name, None)
    return copy


def in_aim(off: float) -> bool:
    """Whether a peak is predicted at what it is, or up to 15 % above.

    Args:
        off: as `Row.peaks_off` has it.
    """
    return 0 <= off <= 0.15


def summary(rows: list[Row]) -> Table:
    """What is left of the accuracy without each term.

    Args:
        rows: of all terms.
    """
    title = "Predicted over run dry, without each term"
    columns = ("peaks", "0 to +15 %", "low", "lowest", "highest", "steps", "within 5 %", "furthest off")
    shown = table_of(title, ("removed",), columns)
    for term in dict.fromkeys([row.removed for row in rows]):
        peaks = [off for row in rows if row.removed == term for off in row.peaks_off]
        steps = [row.step_off for row in rows if row.removed == term]
        shown.add_row(
            term or "nothing",
            str(len(peaks)),
            str(sum([in_aim(off) for off in peaks])),
            str(sum([off < 0 for off in peaks])),
            f"{min(peaks):+.1%}",
            f"{max(peaks):+.1%}",
            str(len(steps)),
            str(sum([abs(off) <= 0.05 for off in steps])),
            f"{max(steps, key=abs):+.1%}",
        )
    return shown


def _profiled(runnable: Runnable, kind: str, training: bool) -> LayerGraph:
    model, cluster = runnable.build().train(training), Cluster.virtual(1, like=kind)
    return profile(model, runnable.inputs(), cluster=cluster, training=training, source="estimate")


def _run_dry(runnable: Runnable, plan: Plan, mode: str) -> Timeline:
    """A dry run; of several ways to step, the largest peaks."""
    model = runnable.build().train(mode != "inference")
    made = [make(model.parameters()) for make in _OPTIMIZERS[mode]]
    ran = [
        dry_run(model, runnable.inputs(), plan, optimizer=optimizer, reorder=True)
        for optimizer in made or (None,)
    ]
    peaks = {name: max([timeline.peak_bytes[name] for timeline in ran]) for name in plan.cluster.names}
    return replace(ran[0], peak_bytes=peaks)


def _step_off(said: Timeline, ran: Timeline) -> float:
    return said.makespan_s / ran.makespan_s - 1


def _peaks_off(said: Timeline, ran: Timeline) -> tuple[float, ...]:
    pairs = [(size, ran.peak_bytes[name]) for name, size in said.peak_bytes.items()]
    return tuple([size / held - 1 if held else float("inf") for size, held in pairs if size or held])
