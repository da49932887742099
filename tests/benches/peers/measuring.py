"""What `python -m benches peers` measures: schedules of the literature, and plans of other systems."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

from rich.console import Console
from rich.table import Table

from baechi.errors import BaechiError
from baechi.place.problem import Problem
from baechi.records.cluster import Cluster
from baechi.records.device import HostCosts
from baechi.records.graph import LayerGraph
from baechi.records.pipeline import Pipeline
from baechi.records.plan import Plan
from baechi.simulate.pipeline import (
    PipelineCoster,
    Tried,
    costs_of,
    ordered,
    shortest_pipeline_s,
)
from baechi.verbs.plans import place, with_optimizer
from baechi.verbs.profile import profile
from benches.accelerate_map import accelerate_plan
from benches.figures import Figures, table_of
from benches.peers.schedules import INTERLEAVED, ZERO_BUBBLE, Schedule, priced
from benches.peers.stretches import by_blocks, by_work
from benches.peers.subjects import MICROBATCHES, Subject, scheduled, subjects

OPTIMIZER = "adam"

BLOCKS, WORK, MAP = "interleaved, by blocks", "interleaved, by work", "map"

_ROOM_BYTES = 2**50

_EAGER, _PROGRAMS, _BY_RANK = "eager", "programs", "by ranks"

HOSTS = (_EAGER, _PROGRAMS, _BY_RANK)
"""How the host is charged: one for all devices; the same with stages as programs; one for each device, where
stages are programs, too."""

_LAUNCH_S = 5e-6


@dataclass(frozen=True)
class Row:
    """A model on a cluster.

    Args:
        model, cluster, microbatches: as `Subject` has them.
        one_s: the step of the whole batch on the first device, whatever its memory.
        parts_s: that of all tasks of our plan, one after the other.
        steps_s: by way, the step; None where there is none.
        fits: by way, whether it fits in memory.
        whole_s: our step without the backward of weights apart; 0 where that is not asked.
        ours_s: our step.
        bound_s: what no order of our stages can beat.
        charged_s: our steps where the host is charged, by `HOSTS`: whole, and apart; of 16 microbatches.
        peaks_bytes: the fullest device, of ours and of ZB-V.
        placed_s: processor seconds of placing.
    """

    model: str
    cluster: str
    microbatches: int
    one_s: float
    parts_s: float
    steps_s: Mapping[str, float | None]
    fits: Mapping[str, bool]
    whole_s: float
    ours_s: float
    bound_s: float
    charged_s: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    peaks_bytes: tuple[int, int] = (0, 0)
    placed_s: float = 0.0

    @property
    def best_s(self) -> float:
        """The shortest of the others, but for the map, which has no microbatches."""
        return min([step_s for way, step_s in self.steps_s.items() if step_s and way != MAP], default=0.0)

    def over(self, way: str) -> float | None:
        """The step of another way over ours."""
        step_s = self.steps_s.get(way)
        return step_s / self.ours_s if step_s else None

    def __str__(self) -> str:
        return (
            f"{self.model}, {self.cluster}, {self.microbatches} microbatches: {self.ours_s * 1e3:.1f} ms, "
            f"{self.one_s / self.ours_s:.2f} times one device, the best of the others "
            f"{self.best_s / self.ours_s:.3f} of it, {self.bound_s / self.ours_s:.3f} of the bound"
        )


def measure(*, quick: bool = False, models: Sequence[str] = (), devices: Sequence[str] = ()) -> Figures:
    """Place, price, and show. Each row is printed to the standard error when it is there.

    Args:
        quick: the smallest row of each table.
        models: only those whose names begin so.
        devices: only clusters whose names begin so.

    Raises:
        ValueError: no row is left.
    """
    console, tables, body = Console(stderr=True), list[Table](), dict[str, list[dict[str, object]]]()
    kinds = (("schedules", list(scheduled()), (schedules, charged)), ("peers", list(subjects()), (peers,)))
    for name, found, shown in kinds:
        chosen = [
            one
            for one in found
            if one.model.startswith(tuple(models) or "") and one.cluster.startswith(tuple(devices) or "")
        ]
        rows = list[Row]()
        for subject in chosen[-1:] if quick else chosen:
            rows.append(_Priced(subject, roomy=name == "schedules").row())
            console.print(str(rows[-1]), highlight=False, soft_wrap=True)
        if rows:
            tables += [table(rows) for table in shown]
            body[name] = [asdict(row) for row in rows]
    if not tables:
        raise ValueError("no model begins so on such devices")
    return Figures(tuple(tables), body)


class _Priced:
    """A row in the making: one model on one cluster.

    Args:
        subject: which.
        roomy: whether memory has no say.
    """

    def __init__(self, subject: Subject, *, roomy: bool) -> None:
        self._subject, self._number = subject, subject.microbatches
        self._roomy = roomy
        self._cluster = _roomy(subject.devices()) if roomy else subject.devices()
        self._model, self._inputs = subject.make()
        self._model.train()

    def row(self) -> Row:
        """All ways."""
        begun_s = time.process_time()
        ours = self._placed(self._apart)
        placed_s = time.process_time() - begun_s
        whole = self._placed(self._whole) if self._roomy else None
        ways = dict(self._ways())
        costs = costs_of(ours.plan)
        zbv = ways.get("ZB-V")
        return Row(
            self._subject.model,
            self._subject.cluster,
            self._number,
            self._one_s(),
            _tasks_s(ours),
            {way: tried and tried.step_s for way, tried in ways.items()} | {MAP: self._map_s()},
            {way: tried.fits for way, tried in ways.items() if tried},
            whole.timeline.makespan_s if whole else 0.0,
            ours.timeline.makespan_s,
            shortest_pipeline_s(costs, self._number),
            self._charged(whole, ours) if whole and self._number == MICROBATCHES else {},
            (max(ours.timeline.peak_bytes.values()), max(zbv.peak_bytes) if zbv else 0),
            placed_s,
        )

    def _placed(self, graph: LayerGraph) -> Pipeline:
        return place(graph, self._cluster, microbatches=self._number, optimizer=OPTIMIZER)

    def _charged(self, whole: Pipeline, apart: Pipeline) -> dict[str, tuple[float, float]]:
        """Both steps by host, on the same placements, ordered anew."""
        cluster = replace(self._cluster, launch_s=_LAUNCH_S, host=HostCosts.usual())
        found = dict[str, tuple[float, float]]()
        for host in HOSTS:
            graph = self._profiled(cluster, microbatches=self._number, programs=host != _EAGER)
            found[host] = (
                _charged_s(replace(whole.plan, graph=graph, cluster=cluster), self._number, host),
                _charged_s(
                    replace(apart.plan, graph=graph.noted(weights_apart=True), cluster=cluster),
                    self._number,
                    host,
                ),
            )
        return found

    @cached_property
    def _whole(self) -> LayerGraph:
        return self._profiled(self._cluster, microbatches=self._number)

    @cached_property
    def _apart(self) -> LayerGraph:
        return self._profiled(self._cluster, microbatches=self._number, weights_apart=True)

    def _profiled(self, cluster: Cluster, **asked: Any) -> LayerGraph:
        found = profile(self._model, self._inputs, cluster=cluster, training=True, source="estimate", **asked)
        return with_optimizer(found, OPTIMIZER)

    def _one_s(self) -> float:
        first = replace(_roomy(self._cluster).devices[0], name="device:0")
        alone = replace(self._cluster, devices=(first,), links={}, hosts=())
        return place(self._profiled(self._cluster), alone, "single").timeline.makespan_s

    def _map_s(self) -> float | None:
        try:
            return accelerate_plan(
                self._model, self._profiled(self._cluster), self._cluster
            ).timeline.makespan_s
        except BaechiError:
            return None

    def _ways(self) -> Iterator[tuple[str, Tried | None]]:
        """By way, the best of its schedules: by what fits, then by the step."""
        yield BLOCKS, self._best(INTERLEAVED, self._whole, self._by_blocks)
        yield WORK, self._best(INTERLEAVED, self._whole, by_work)
        for schedule in ZERO_BUBBLE:
            yield schedule.name, self._best((schedule,), self._apart, by_work)

    def _by_blocks(self, problem: Problem, coster: PipelineCoster, count: int) -> list[int] | None:
        block = self._subject.block
        return by_blocks(problem, coster, count, block) if block else None

    def _best(
        self,
        schedules: Sequence[Schedule],
        graph: LayerGraph,
        cut: Callable[[Problem, PipelineCoster, int], list[int] | None],
    ) -> Tried | None:
        problem, coster = Problem(graph, self._cluster), PipelineCoster(graph, self._cluster)
        devices, found = len(self._cluster), list[Tried]()
        for schedule in schedules:
            if not schedule.fits(devices, self._number):
                continue
            stretch_of = cut(problem, coster, devices * schedule.stretches)
            if stretch_of is None:
                continue
            costs = coster([schedule.device_of(one, devices) for one in stretch_of])
            found.append(priced(schedule, costs, stretch_of, self._number))
        return min(found, key=lambda one: (not one.fits, one.step_s), default=None)


def _roomy(cluster: Cluster) -> Cluster:
    return replace(
        cluster, devices=tuple([replace(one, memory_bytes=_ROOM_BYTES) for one in cluster.devices])
    )


def _tasks_s(made: Pipeline) -> float:
    """Seconds of all tasks, one after the other."""
    return sum([span.end_s - span.start_s for span in made.timeline.spans if span.kind == "compute"])


def _charged_s(plan: Plan, microbatches: int, host: str) -> float:
    """The step of a placement, ordered anew, where the host takes time."""
    if host == _BY_RANK:
        names = {name: f"rank{number}/cuda:0" for number, name in enumerate(plan.cluster.names)}
        device_of = {layer: names[device] for layer, device in plan.device_of.items()}
        plan = replace(plan, device_of=device_of, cluster=_renamed(plan.cluster, names))
    return ordered(plan, microbatches).timeline.makespan_s


def _renamed(cluster: Cluster, names: Mapping[str, str]) -> Cluster:
    devices = tuple([replace(one, name=names[one.name]) for one in cluster.devices])
    links = {(names.get(a, a), names.get(b, b)): way for (a, b), way in cluster.links.items()}
    hosts = tuple([replace(one, devices=tuple([names[n] for n in one.devices])) for one in cluster.hosts])
    return replace(cluster, devices=devices, links=links, hosts=hosts)


def schedules(rows: Sequence[Row]) -> Table:
    """Pipelines beside the schedules of the literature.

    Args:
        rows: what was measured.
    """
    title = (
        "Training steps, ms, the host uncharged, memory unlimited; "
        "over: the best of the five others over ours; gain: one device over ours, with the whole batch, and "
        "with our tasks one after the other; bound: what no order of our stages can beat, over ours"
    )
    ways = (BLOCKS, WORK, *[one.name for one in ZERO_BUBBLE])
    numbers = ("one device", *ways, "whole backward", "ours", "over", "gain", "gain of tasks", "bound")
    shown = table_of(title, ("model", "devices", "m"), (*numbers, "GiB", "GiB of ZB-V", "s"))
    for row in rows:
        times = [row.one_s, *[row.steps_s.get(way) for way in ways], row.whole_s, row.ours_s]
        figures = [row.best_s, row.one_s, row.parts_s, row.bound_s]
        sizes = [f"{size / 2**30:.1f}" for size in row.peaks_bytes]
        shown.add_row(
            row.model,
            row.cluster,
            str(row.microbatches),
            *[_ms(one) for one in times],
            f"{figures[0] / row.ours_s:.3f}",
            *[f"{one / row.ours_s:.2f}" for one in figures[1:3]],
            f"{figures[3] / row.ours_s:.3f}",
            *sizes,
            f"{row.placed_s:.0f}",
        )
    return shown


def charged(rows: Sequence[Row]) -> Table:
    """The same steps where the host takes time.

    Args:
        rows: what was measured.
    """
    title = "The same with the host charged, ms: the whole backward / the backward of weights apart"
    shown = table_of(title, ("model", "devices", "m"), ("uncharged", *HOSTS))
    for row in rows:
        if not row.charged_s:
            continue
        pairs = [(row.whole_s, row.ours_s), *[row.charged_s[host] for host in HOSTS]]
        cells = [f"{_ms(whole)} / {_ms(apart)}" for whole, apart in pairs]
        shown.add_row(row.model, row.cluster, str(row.microbatches), *cells)
    return shown


def peers(rows: Sequence[Row]) -> Table:
    """Plans beside those of other systems.

    Args:
        rows: what was measured.
    """
    title = "Training steps, ms, the host uncharged (* does not fit), and by how many times ours is faster"
    ways = (BLOCKS, WORK, "ZB-V", MAP)
    shown = table_of(
        title, ("model", "devices"), ("one device", *ways, "ours", *[f"over {way}" for way in ways])
    )
    for row in rows:
        cells = [_ms(row.steps_s.get(way)) + "*" * (not row.fits.get(way, True)) for way in ways]
        gains = [row.over(way) for way in ways]
        shown.add_row(
            row.model,
            row.cluster,
            _ms(row.one_s),
            *cells,
            _ms(row.ours_s),
            *["-" if gain is None else f"{gain:.2f}" for gain in gains],
        )
    return shown


def _ms(step_s: float | None) -> str:
    return "-" if step_s is None else f"{step_s * 1e3:,.1f}"
