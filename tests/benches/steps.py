"""What a plan gains: the training step of a model in each way in which it can run, and what bounds it.

Each way is run dry (`baechi.dry_run`): kernels by the datasheet, streams, links and memory as emulated, the
host by `HostCosts.usual`. A step is forward and backward. The optimizer's step takes no time here; its state
takes memory.

    one device      all layers on the first; its memory has no say
    device map      accelerate's, balanced by bytes of weights, in the code's order
    code's order    the placement of `auto`, launched as the code reaches layers
    reordered       the same, launched in the plan's order
    pipelined       the placement of `auto` for microbatches
    programs        the same with each stage compiled (`compile="stages"`, "aot_eager"), planned as such
    split           the placement of `auto`, with heavy layers split where `split="auto"` splits them
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from importlib.util import find_spec
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

from baechi import zoo
from baechi.errors import BaechiError, PlacementError
from baechi.records.cluster import Cluster
from baechi.records.device import HostCosts
from baechi.records.graph import LayerGraph
from baechi.records.inputs import Inputs
from baechi.records.pipeline import Pipeline
from baechi.records.plan import Plan
from baechi.records.timeline import Timeline
from baechi.report import host_share
from baechi.report.pipeline import PipelineFacts
from baechi.report.reading import read
from baechi.verbs.dry_run import dry_run
from baechi.verbs.judge import checked, runner
from baechi.verbs.plans import place, with_optimizer
from baechi.verbs.profile import profile
from baechi.verbs.split.gain import split_where_it_gains
from benches.accelerate_map import accelerate_plan
from benches.figures import Figures, table_of
from benches.models import large
from benches.models.small import Example, makers

OURS = ("code's order", "reordered", "pipelined", "programs", "split")
WAYS = ("one device", "device map", *OURS)
OPTIMIZER = "adam"

_UNBOUNDED = 2**50
_MICROBATCHES = 8
_MOST = 0.8
"""The host bounds a step for this part of which it works, as reports have it."""

_AS_FAST = 1.02
"""One device is as fast as a way of ours if it takes at most this many times its step."""

Bound = Literal["device", "link", "memory", "host"]
_WORDS: Mapping[str, Bound] = {
    "work": "device", "serial": "device", "balance": "device", "bubble": "device", "nothing": "device",
    "transfer": "link", "link": "link", "waiting": "link", "memory": "memory", "host": "host",
}  # fmt: skip
"""What reports of plans and pipelines say, in a word."""


@dataclass(frozen=True)
class Case:
    """A model on a cluster.

    Args:
        model: its name, with its batch.
        make: makes it on the `meta` device.
        cluster: its name, a key of `clusters`.
        microbatches: into how many its batch is split; 1 where its loss compares rows with each other, so
            that microbatches are refused (`BatchCoupled`).
    """

    model: str
    make: Callable[[], Example]
    cluster: str
    microbatches: int = _MICROBATCHES


@dataclass(frozen=True)
class Way:
    """A model, run in one way.

    Args:
        step_s: forward and backward.
        host_share: for which part of the step the host works.
        fits: whether each device has the memory.
        bound: what bounds the step.
        again: whether some of its modules are recomputed in backward, since it does not fit otherwise.
        why_not: why there is no figure; empty if there is one.
    """

    step_s: float = 0.0
    host_share: float = 0.0
    fits: bool = True
    bound: Bound = "device"
    again: bool = False
    why_not: str = ""

    def __str__(self) -> str:
        marks = f"{'' if self.fits else '*'}{' r' if self.again else ''}"
        return "-" if self.why_not else f"{self.step_s * 1e3:,.1f}{marks}"


@dataclass(frozen=True)
class Row:
    """A model on a cluster, in all ways.

    Args:
        model, cluster, microbatches: as `Case` has them.
        ways: by name.
        taken_s: seconds of processor time that the row took.
    """

    model: str
    cluster: str
    microbatches: int
    ways: Mapping[str, Way] = field(default_factory=dict)
    taken_s: float = 0.0

    @property
    def best(self) -> str:
        """The fastest of our ways that fit."""
        fitting = {name: self.ways[name].step_s for name in OURS if name in self.ways}
        fitting = {name: s for name, s in fitting.items() if self.ways[name].fits and s}
        return min(fitting, key=fitting.__getitem__, default="code's order")

    @property
    def gain(self) -> float:
        """The step of one device, whatever its memory, over the fastest of ours."""
        return self.ways["one device"].step_s / (self.ways[self.best].step_s or 1.0)

    @property
    def bound(self) -> Bound:
        """What bounds the fastest way: memory where one device would be as fast, and has not enough."""
        one, best = self.ways["one device"], self.ways[self.best]
        if not one.why_not and not one.fits and one.step_s <= _AS_FAST * best.step_s:
            return "memory"
        return best.bound


def measure(*, quick: bool = False, models: Sequence[str] = (), devices: Sequence[str] = ()) -> Figures:
    """Run dry, and show. Each row is printed to the standard error when it is there.

    Args:
        quick: a small model.
        models: only those whose names begin so.
        devices: only clusters whose names begin so.
    """
    console, rows = Console(stderr=True), list[Row]()
    for row in steps(quick=quick, models=models, devices=devices):
        rows.append(row)
        cells = ", ".join([f"{name} {way} {way.why_not}".strip() for name, way in row.ways.items()])
        told = f"{row.model}, {row.cluster}: {cells}; {row.bound}, {row.taken_s:.0f} s"
        console.print(told, highlight=False, soft_wrap=True)
    return Figures((table(rows),), [asdict(row) | {"bound": row.bound, "gain": row.gain} for row in rows])


def table(rows: Sequence[Row]) -> Table:
    """The rows as a table.

    Args:
        rows: what was run.
    """
    title = (
        "Training step, ms (* needs more memory than there is, r with recomputation); "
        "bound and host: of the fastest of ours"
    )
    shown = table_of(title, ("model, batch", "devices", "bound"), ("host", *WAYS, "gain", "s"))
    for row in rows:
        cells = {name: str(way) for name, way in row.ways.items()}
        for name in ("pipelined", "programs"):
            if not row.ways[name].why_not:
                cells[name] += f" (m={row.microbatches})"
        host, taken = f"{row.ways[row.best].host_share:.0%}", f"{row.taken_s:.0f}"
        shown.add_row(row.model, row.cluster, row.bound, host, *cells.values(), f"{row.gain:.2f}", taken)
    return shown


def clusters() -> dict[str, Cluster]:
    """The clusters by name, with a host that is charged."""
    found = {f"{n} A100": Cluster.uniform(n, like="A100-80GB", link="nvlink") for n in (2, 4, 8)}
    found["RTX-4090 + RTX-3090"] = Cluster.parse("1xRTX-4090,1xRTX-3090")
    return {name: replace(cluster, host=HostCosts.usual()) for name, cluster in found.items()}


def cases(*, quick: bool = False) -> Iterator[Case]:
    """Which models run on which clusters.

    Args:
        quick: one small model.

    Yields:
        Large models, then small ones; those of transformers only if it is installed.
    """
    if quick:
        make = partial(zoo.MODELS["transformer"], "small", None, device="meta")
        yield Case("Transformer, small", make, "2 A100", 2)
        return
    of = partial(partial, large.of_transformers)
    if find_spec("transformers") is not None:
        yield Case("CLIP-L/14, 64, bf16", of(large.clip), "2 A100", 1)
        yield Case("Llama-7B, 16 x 2048, bf16", of(partial(large.llama, batch=16)), "4 A100", 16)
        yield Case("Llama-7B, 4 x 2048, bf16", of(large.llama), "4 A100", 4)
        yield Case("T5-3B, 8 x 512, bf16", of(large.t5), "RTX-4090 + RTX-3090")
        yield Case("GPT-2-XL, 8 x 1024, bf16", of(large.gpt2_xl), "4 A100")
        yield Case("Mixtral-like, 4 x 1024, bf16", of(large.mixtral), "4 A100", 4)
    yield Case("Inception-v3, 64", large.inception, "4 A100")
    yield Case("U-Net 256 x 256, 64", large.unet, "4 A100")
    yield Case("U-Net 256 x 256, 64", large.unet, "8 A100")
    yield Case("GNMT, 128", large.gnmt, "4 A100")
    for name, make in makers(small=True):
        shown, batch = _SMALL[name]
        parts = 1 if name == "clip-base" else min(_MICROBATCHES, batch)
        yield Case(shown, partial(make, batch), "4 A100", parts)


_SMALL = {
    "inception-v3": ("Inception-v3, 8", 8),
    "gnmt": ("GNMT, 16", 16),
    "transformer": ("Transformer, 16", 16),
    "t5-small": ("T5-small, 8 x 128", 8),
    "clip-base": ("CLIP-base, 8", 8),
    "gpt2-small": ("GPT-2, 2 x 128", 2),
}
"""How the small models are shown, and their batches."""


def steps(*, quick: bool = False, models: Sequence[str] = (), devices: Sequence[str] = ()) -> Iterator[Row]:
    """Run one case after the other.

    Args:
        quick: a small model, without a search.
        models: only those whose names begin so.
        devices: only clusters whose names begin so.

    Yields:
        A row for each case.

    Raises:
        ValueError: no case is left.
    """
    known = clusters()
    chosen = [
        case
        for case in cases(quick=quick)
        if case.model.startswith(tuple(models) or "") and case.cluster.startswith(tuple(devices) or "")
    ]
    if not chosen:
        raise ValueError(f"no model begins so on such devices; there are {', '.join(known)}")
    for case in chosen:
        begun_s = time.process_time()
        ways = _Ways(case, known[case.cluster], effort=0 if quick else 1)
        found = {name: _way(partial(ways.ran, name)) for name in WAYS}
        taken_s = time.process_time() - begun_s
        yield Row(case.model, case.cluster, case.microbatches, found, taken_s)


def _way(run: Callable[[], Way]) -> Way:
    try:
        return run()
    except BaechiError as error:
        return Way(fits=False, why_not=str(error).partition("\n")[0])


class _Ways:
    """A case, to be run in each way."""

    def __init__(self, case: Case, cluster: Cluster, *, effort: int) -> None:
        self._case, self._cluster = case, cluster
        self._model, self._inputs = case.make()
        self._model.train()
        self._graph = with_optimizer(self._profiled(), OPTIMIZER)
        self._place = partial(place, cluster=cluster, placer="auto", effort=effort)

    def ran(self, name: str) -> Way:
        """The way of that name, run dry."""
        if name == "one device":
            first = replace(self._cluster.devices[0], memory_bytes=_UNBOUNDED)
            alone = replace(self._cluster, devices=(first,))
            return self._dry(place(self._graph, alone, "single"), reorder=False)
        if name == "device map":
            return self._dry(accelerate_plan(self._model, self._graph, self._cluster), reorder=False)
        if name in ("pipelined", "programs"):
            return self._pipelined(programs=name == "programs")
        plan = self._plan()
        if name == "split":
            return self._split(plan)
        if name == "reordered" and _in_code_order(plan):
            return self.ran("code's order")
        return self._dry(plan, reorder=name == "reordered")

    @cache  # noqa: B019  # it lives as long as a row
    def _plan(self) -> Plan:
        """As `auto` places it; where that does not fit, with some modules running again in backward."""
        try:
            return self._place(self._graph)
        except PlacementError:
            return self._place(self._graph, recompute="auto")

    def _pipelined(self, *, programs: bool) -> Way:
        number = self._case.microbatches
        if number == 1:
            return Way(why_not="its loss compares rows")
        graph = with_optimizer(self._profiled(microbatches=number, programs=programs), OPTIMIZER)
        way = self._dry(self._place(graph, microbatches=number))
        again = self._plan().recompute
        if way.fits or not again:
            return way
        return self._dry(self._place(graph, microbatches=number, recompute=again))

    def _split(self, plan: Plan) -> Way:
        quick = partial(self._place, effort=0)
        judge = partial(checked, run=runner(self._model, [Inputs.of(self._inputs)], OPTIMIZER))
        split = split_where_it_gains(plan.graph, self._cluster, plan, quick, self._place, judge)
        return self._dry(split) if split.graph.says("shard") else Way(why_not="no layer is split")

    def _profiled(self, **asked: Any) -> LayerGraph:
        return profile(
            self._model, self._inputs, cluster=self._cluster, training=True, source="estimate", **asked
        )

    def _dry(self, plan: Plan | Pipeline, **asked: Any) -> Way:
        timeline = dry_run(self._model, self._inputs, plan, **asked)
        share = min(1.0, host_share.worked_s(timeline) / timeline.makespan_s)
        again = bool((plan.plan if isinstance(plan, Pipeline) else plan).graph.graph.get("recompute"))
        return Way(timeline.makespan_s, share, self._fits(timeline), _bound(plan, timeline, share), again)

    def _fits(self, timeline: Timeline) -> bool:
        memory = {device.name: device.memory_bytes for device in self._cluster.devices}
        return all(peak <= memory[name] for name, peak in timeline.peak_bytes.items())


def _in_code_order(plan: Plan) -> bool:
    places = {node: place for place, node in enumerate(plan.graph.code_order())}
    return list(plan.order) == sorted(plan.order, key=places.__getitem__)


def _bound(plan: Plan | Pipeline, timeline: Timeline, share: float) -> Bound:
    """The host where it works nearly always: a device counts as busy while it waits for a layer's kernels."""
    if share >= _MOST:
        return "host"
    if isinstance(plan, Pipeline):
        return _WORDS[PipelineFacts(replace(plan, dry=timeline)).reading[0]]
    return _WORDS[read(plan, timeline).bound]
