"""The gain of a plan: steps on the emulated cluster, beside one device and naive execution.

Naive is what a plain device map does: layers in the code's order, and each copy when it is needed, on
the streams that compute. Models have their published sizes, with batches that a CPU computes in
seconds; the clocks are logical, so the table is the same on every machine. In the last column layers are
split where `split="auto"` does so. All ways pay what this
project's runtime takes of the host (`HostCosts.usual`); on one device that is its inputs and outputs.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from rich.table import Table
from torch import nn

from baechi.backend.virtual.devices import VirtualDevices
from baechi.errors import PlacementError, PlanError
from baechi.records.cluster import HOST, Cluster
from baechi.records.device import HostCosts
from baechi.records.graph import LayerGraph
from baechi.records.inputs import Inputs
from baechi.records.plan import Plan
from baechi.run.binding import binding_of
from baechi.verbs.distribute import assign
from baechi.verbs.judging import checked, runner
from baechi.verbs.planning import place, with_optimizer
from baechi.verbs.profiling import profile
from baechi.verbs.split.gaining import Judge, split_where_it_gains
from benches.accelerate_map import accelerate_plan, is_installed
from benches.figures import Figures, table_of
from benches.models.clusters import Setting
from benches.models.runnable import Runnable
from benches.models.small import Maker, makers
from benches.truth import emulated

SETTINGS = (
    Setting(2, "NVLink", equal=True, roomy=True),
    Setting(2, "PCIe", equal=True, roomy=True),
    Setting(2, "NVLink", equal=False, roomy=True),
    Setting(4, "NVLink", equal=True, roomy=True),
    Setting(8, "NVLink", equal=True, roomy=True),
)
BATCHES = {"inception-v3": 8, "gnmt": 16, "transformer": 16, "t5-small": 8, "clip-base": 8, "gpt2-small": 2}

_EACH_BYTES = 10**12  # enough for every model: this bench measures time only
_MODE = "sgd"

Run = Callable[[nn.Module, Plan], nn.Module]
"""Makes a model follow a plan, in one way or another."""


class InLine(VirtualDevices):
    """Emulated devices that copy on the streams that compute, as `Tensor.to` does."""

    def transfer_streams(self, source: str, target: str) -> tuple[Any, Any]:
        """The streams that compute at both ends; see `AbstractBackend`."""
        tx, rx = super().transfer_streams(source, target)
        return tx and self.compute_stream(source), rx and self.compute_stream(target)


def naively(model: nn.Module, plan: Plan) -> nn.Module:
    """Let a model follow a plan's devices as a plain device map would.

    Args:
        model: a plain model.
        plan: where its layers lie; its order has no say.

    Returns:
        The same model.
    """
    assign(model, plan, reorder=False)
    binding = binding_of(model)
    assert binding is not None
    binding.runtime.backend = InLine(plan.cluster.names)
    binding.runtime.readers = {}  # nothing is sent before it is needed
    return model


@dataclass(frozen=True)
class Row:
    """A model on a cluster.

    Args:
        model: its name.
        cluster: the setting.
        steps_s: seconds of a training step, by the way it was run; None where the way has no placement.
        placer: who placed it.
    """

    model: str
    cluster: str
    steps_s: Mapping[str, float | None]
    placer: str


def measure(*, quick: bool = False) -> Figures:
    """Run, and show.

    Args:
        quick: small models on the first cluster, and no search.
    """
    rows = list(steps(quick=quick))
    return Figures((table(rows),), [asdict(row) for row in rows])


def steps(*, quick: bool = False) -> Iterator[Row]:
    """Run every model on every cluster.

    Args:
        quick: small models on the first cluster, and no search.

    Yields:
        One row after the other. Accelerate's map is in it if it is installed.
    """
    for name, make in makers(quick=quick, small=True):
        batch = None if quick else BATCHES[name]
        runnable = Runnable(name, partial(_part, make, batch, 0), partial(_part, make, batch, 1))
        model, inputs = make(batch)
        for setting in SETTINGS[:1] if quick else SETTINGS:
            cluster = on_cpu(setting.cluster(_EACH_BYTES))
            graph = profile(model, inputs, cluster=cluster, training=True, source="estimate")
            judge = partial(checked, run=runner(model, [Inputs.of(inputs)], _MODE))
            yield _row(runnable, model, graph, cluster, str(setting), judge, effort=0 if quick else 1)


def on_cpu(cluster: Cluster) -> Cluster:
    """The same devices, emulated in this process, and a host that takes its time for the runtime's own work.

    Args:
        cluster: devices to plan for.
    """
    new = {device.name: f"cpu:{number}" for number, device in enumerate(cluster.devices)} | {HOST: HOST}
    devices = tuple([replace(device, name=new[device.name]) for device in cluster.devices])
    links = {(new[a], new[b]): link for (a, b), link in cluster.links.items()}
    return replace(cluster, devices=devices, links=links, host=HostCosts.usual(), emulated=True)


def table(rows: list[Row]) -> Table:
    """The rows as a table.

    Args:
        rows: what was measured.
    """
    ways = list(rows[0].steps_s) if rows else []
    shown = table_of("Emulated training step, ms", ("model", "cluster", "placed by"), ways)
    for row in rows:
        cells = ["-" if step_s is None else f"{step_s * 1e3:.2f}" for step_s in row.steps_s.values()]
        shown.add_row(row.model, row.cluster.removesuffix(", roomy"), row.placer, *cells)
    return shown


def _part(make: Maker, batch: int | None, part: int) -> Any:
    return make(batch, "cpu")[part]


def _row(
    runnable: Runnable,
    model: nn.Module,
    graph: LayerGraph,
    cluster: Cluster,
    name: str,
    judge: Judge,
    *,
    effort: int,
) -> Row:
    place_auto = partial(place, cluster=cluster, placer="auto", optimizer=_MODE, effort=effort)
    plan = place_auto(graph)
    quick = partial(place_auto, effort=0)
    split = split_where_it_gains(with_optimizer(graph, _MODE), cluster, plan, quick, place_auto, judge)
    ways: dict[str, tuple[Callable[[], Plan], Run]] = {
        "one device": (partial(place, graph, cluster, "single", optimizer=_MODE), assign),
        "auto, naive": (lambda: plan, naively),
        "auto, code's order": (lambda: plan, partial(assign, reorder=False)),
        "auto": (lambda: plan, assign),
    }
    if is_installed():
        ways["accelerate, naive"] = (partial(accelerate_plan, model, graph, cluster), naively)
    steps_s = {way: _step_s(make, run, runnable) for way, (make, run) in ways.items()}
    steps_s["auto, split"] = steps_s["auto"] if split is plan else _step_s(lambda: split, assign, runnable)
    return Row(runnable.name, name, steps_s, plan.placer)


def _step_s(make: Callable[[], Plan], run: Run, runnable: Runnable) -> float | None:
    try:
        plan = make()
    except (PlacementError, PlanError):
        return None
    return emulated(plan, runnable, _MODE, run=run, steps=1).makespan_s
