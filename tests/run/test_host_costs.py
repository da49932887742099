"""The emulated host is charged with the runtime's own work, the simulator agrees, and plans heed it."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from benches.models.runnable import Runnable, runnables
from benches.truth import emulated, profiled
from torch import nn

import baechi
from baechi.dispatch.schedulers.round_robin import RoundRobin
from baechi.order import LaunchOrder, waiting_layers
from baechi.records import Cluster, Device, HostCosts, Link, Plan
from baechi.records.device import TORCH_WORK, HostWork
from baechi.run.runtime import Reorder

pytestmark = pytest.mark.default_cases(2)

FAST = Device("cpu:0", "fast", 10**9, flops_per_s={"float32": 1e18}, bytes_per_s=1e18)
CLUSTER = Cluster((FAST, replace(FAST, name="cpu:1")), link=Link(0.0, 1e18), emulated=True)
COST_S = 1e-3
WIDTH = 4


class Fork(nn.Module):
    """Four layers and two functional ops; the plan below lets `left` wait for `right`."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.left, self.right, self.last = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        left, right = self.left(x), self.right(x)
        return self.last(left + right).view(-1) + 1


def plan_for(host: HostCosts | None, *, training: bool, alone: bool = False) -> Plan:
    cluster, x = replace(CLUSTER, host=host), torch.ones(2, WIDTH)
    graph = baechi.profile(Fork(), x, cluster=cluster, training=training, source="estimate")
    after = [node for node in graph.placed() if node not in ("first", "left", "right")]
    devices = {node: CLUSTER.names[0] for node in graph.placed()}
    if not alone:
        devices |= dict.fromkeys(after[after.index("last") :], CLUSTER.names[1])
    return Plan(graph, cluster, devices, ("first", "right", "left", *after))


def ran_s(plan: Plan, *, training: bool, reorder: Reorder = True) -> float:
    """The step on the emulated cluster."""
    model, x = baechi.assign(Fork(), plan, reorder=reorder), torch.ones(2, WIDTH)
    with plan.cluster, torch.set_grad_enabled(training):
        out = model(x)
        if training:
            out.sum().backward()
        return plan.cluster.emulation.timeline().makespan_s


EVENTS = [
    ("layer_call_s", False, True, 4),
    ("functional_op_s", False, True, 2),  # the view is free
    ("waiting_layer_s", False, "host", 1),
    ("waiting_layer_threads_s", False, "threads", 1),
    ("transfer_s", False, True, 2),  # the step begins with that of the input
    ("gradient_transfer_s", True, True, 2),
    ("backward_node_s", True, True, 2),  # received by one device and sent on; the other's thread is idle
]


@pytest.mark.parametrize(("field", "training", "reorder", "events"), EVENTS)
def test_each_is_charged(field: str, training: bool, reorder: Reorder, events: int) -> None:
    """A step grows by what each event of its kind costs, and by nothing else."""
    plain_s = ran_s(plan_for(None, training=training), training=training, reorder=reorder)
    plan = plan_for(HostCosts(**{field: COST_S}), training=training)
    grown_s = ran_s(plan, training=training, reorder=reorder) - plain_s
    if field == "backward_node_s":
        # these are Python, so a third one waits for its turn (the simulator lets threads overlap), and the
        # launch of the kernel before it hides behind it
        events, hidden_s = events + 1, CLUSTER.launch_s
    else:
        hidden_s = 0.0
    assert grown_s == pytest.approx(events * COST_S - hidden_s, abs=1e-9)


def counted(work: HostWork, model: Any, cluster: Cluster, x: torch.Tensor) -> tuple[int, float]:
    """How often the third step, which no judge looks at, does something, and how long the host takes."""
    with cluster:
        for _ in range(3):
            before, begun_s = cluster.emulation.charged[work], cluster.emulation.now_s
            out = model(x)
            if out.requires_grad:
                out.sum().backward()
            cluster.emulation.synchronize()
        return cluster.emulation.charged[work] - before, cluster.emulation.now_s - begun_s


class Rows(nn.Module):
    """Two layers, with a functional op between, and a loss of rows."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x) * 2).square().mean()


IN_MICROBATCHES = {
    "step": 1,
    "microbatch": 2,
    "lane_layer": 4,  # two layers, twice
    "lane_op": 6,  # three functional ops, twice
    "boundary": 2,  # what the second device reads, twice
    "waiting_gradient": 4,  # weights and biases
}


@pytest.mark.parametrize("work", IN_MICROBATCHES)
def test_microbatches_are_charged(work: HostWork) -> None:
    """What a step in microbatches does is counted, and the host's clock goes on by what it costs."""
    x, taken_s = torch.ones(4, WIDTH), []
    for host in (HostCosts(), HostCosts(**{f"{work}_s": COST_S})):
        cluster = replace(CLUSTER, host=host)
        graph = baechi.profile(Rows(), x, cluster=cluster, training=True, source="estimate", microbatches=2)
        plan = Plan.from_device_map(graph, cluster, {"first": 0, "last": 1})
        model = baechi.distribute(Rows(), plan=baechi.pipeline(plan, 2, "gpipe"), loss_weights="rows")
        found, step_s = counted(work, model, cluster, x)
        taken_s.append(step_s)
    assert found == IN_MICROBATCHES[work]
    assert taken_s[1] - taken_s[0] == pytest.approx(found * COST_S, rel=0.05)


def test_chunks_and_full_calls_are_charged() -> None:
    """A chunk for each half of the batch; a call whose argument is no tensor takes the full path."""
    x = torch.ones(4, WIDTH)
    cluster = replace(CLUSTER, host=HostCosts())
    model = baechi.dispatch(nn.Linear(WIDTH, WIDTH), RoundRobin(2, cluster, batch_size=2), out=("cat", 0))
    with torch.no_grad():
        assert counted("chunk", model, cluster, x)[0] == 2

    class Listed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(WIDTH, WIDTH), Summed()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last([self.first(x), x])

    graph = baechi.profile(Listed(), x, cluster=cluster, training=False, source="estimate")
    plan = Plan.from_device_map(graph, cluster, {"first": 0, "last": 1})
    with torch.no_grad():
        assert counted("full_call", baechi.assign(Listed(), plan), cluster, x)[0] >= 1


def test_split_layers_are_charged() -> None:
    """For each call, beside those of its shards."""
    x, cluster = torch.ones(4, WIDTH), replace(CLUSTER, host=HostCosts())
    model = baechi.distribute(nn.Sequential(nn.Linear(WIDTH, WIDTH)), x, cluster=cluster, split={"0": 2})
    assert counted("split_layer", model, cluster, x)[0] == 1


class Summed(nn.Module):
    """Adds what it finds in a list to its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, values: list[torch.Tensor]) -> torch.Tensor:
        return values[0] + values[1] + self.weight


def test_every_cost_is_tested() -> None:
    """The tables here have each cost of the runtime once, but for two of pipelines.

    See `pipeline/test_emulated.py` and `pipeline/test_weights_apart.py`; of torch's own
    `backend/virtual/test_host_work.py`.
    """
    own = {row[0].removesuffix("_s") for row in EVENTS} | {
        *IN_MICROBATCHES,
        "chunk",
        "full_call",
        "split_layer",
    }
    assert own | {"task", "weights"} == set(HostCosts().by_work()) - set(TORCH_WORK)


@pytest.mark.parametrize(("field", "training", "reorder", "events"), [r for r in EVENTS if r[2] != "threads"])
def test_each_is_simulated(field: str, training: bool, reorder: Reorder, events: int) -> None:
    """The simulator charges the same; threads are launched by choice, of which a plan knows nothing."""
    plain = plan_for(None, training=training)
    grown_s = plan_for(HostCosts(**{field: COST_S}), training=training).timeline.makespan_s
    assert grown_s - plain.timeline.makespan_s == pytest.approx(events * COST_S, abs=1e-9)


def test_one_device_is_spared() -> None:
    """A model on one device has no wrapped layers: its output's transfer is what it pays for."""
    costs = HostCosts.usual().of_runtime()
    plain, plan = (plan_for(host, training=False, alone=True) for host in (None, costs))
    for grown_s in (
        plan.timeline.makespan_s - plain.timeline.makespan_s,
        ran_s(plan, training=False) - ran_s(plain, training=False),
    ):
        assert grown_s == pytest.approx(costs.transfer_s, abs=1e-9)


@pytest.mark.parametrize("runnable", list(runnables(quick=True)), ids=lambda runnable: runnable.name)
@pytest.mark.parametrize("mode", ["inference", "sgd"])
def test_prediction(runnable: Runnable, mode: str) -> None:
    """A predicted step is within 12 % of the emulated one, with the costs that the simulator knows.

    It lets Python nodes of several devices run at once, where the emulated host runs one at a time.
    """
    known = replace(HostCosts.usual().of_runtime(), step_s=0.0, full_call_s=0.0)
    graph = profiled(runnable, "A100-80GB", mode != "inference")
    cluster = replace(Cluster.virtual(2, memory="64GiB"), host=known)
    plan = baechi.place(graph, cluster, "random:1")
    assert plan.timeline.makespan_s == pytest.approx(emulated(plan, runnable, mode).makespan_s, rel=0.12)


class Ladder(nn.Module):
    """Two chains, of which the code runs a layer each in turn."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.left, self.right = (nn.ModuleList([nn.Linear(width, width) for _ in range(6)]) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left = right = x
        for one, other in zip(self.left, self.right, strict=True):
            left, right = one(left), other(right)
        return left + right


@pytest.mark.parametrize(("rows", "used"), [(2**8, 1), (2**12, 2)])
def test_auto_heeds_them(rows: int, used: int) -> None:
    """One device where the host would eat the gain; else several, and no layer waits without need."""
    cluster = Cluster.virtual(2)
    graph = baechi.profile(
        Ladder(512), torch.empty(rows, 512), cluster=cluster, source="estimate", training=True
    )
    assert len(baechi.place(graph, cluster, "auto").devices_used) == 2
    plan = baechi.place(graph, replace(cluster, host=HostCosts.usual()), "auto")
    assert len(plan.devices_used) == used
    assert waiting_layers(LaunchOrder.of(plan)) == []


class Urgent(nn.Module):
    """A side chain that the code runs before a layer for which another device waits."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.side, self.main = (nn.Sequential(*[nn.Linear(width, width) for _ in range(6)]) for _ in range(2))
        self.first, self.urgent = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        aside = self.side(x)
        return aside + self.main(self.urgent(x))


def test_auto_leaves_reordering_off() -> None:
    """Layers wait where that is free, and not where the host takes longer for it than it gains."""
    cluster = Cluster.virtual(2, memory="40GiB", like="A100-80GB")
    graph = baechi.profile(
        Urgent(1024), torch.empty(128, 1024), cluster=cluster, source="estimate", training=True
    )
    for layer in graph.placed():
        graph.nodes[layer]["pin"] = "cpu:1" if layer.startswith(("main", "glue")) else "cpu:0"
    free = baechi.place(graph, cluster, "auto")
    charged = baechi.place(graph, replace(cluster, host=HostCosts.usual()), "auto")
    assert waiting_layers(LaunchOrder.of(free)) and not waiting_layers(LaunchOrder.of(charged))
    assert free.timeline.makespan_s < charged.timeline.makespan_s
