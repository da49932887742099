"""The emulated host is charged with the runtime's own work, the simulator agrees, and plans heed it."""

from dataclasses import fields, replace

import pytest
import torch
from torch import nn

import baechi
from baechi.bench.models.runnable import Runnable, runnables
from baechi.bench.truth import emulated, profiled
from baechi.order import LaunchOrder, waiting_layers
from baechi.records import Cluster, Device, HostCosts, Link, Plan
from baechi.run.runtime import Reorder

pytestmark = pytest.mark.default_cases(4)

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
    assert grown_s == pytest.approx(events * COST_S, abs=1e-9)


def test_every_cost_is_tested() -> None:
    """The table above has each field once; the last two are of pipelines.

    See `pipeline/test_emulated.py` and `pipeline/test_weights_apart.py`.
    """
    assert [field.name for field in fields(HostCosts)] == [*[row[0] for row in EVENTS], "task_s", "weights_s"]


@pytest.mark.parametrize(("field", "training", "reorder", "events"), [r for r in EVENTS if r[2] != "threads"])
def test_each_is_simulated(field: str, training: bool, reorder: Reorder, events: int) -> None:
    """The simulator charges the same; threads are launched by choice, of which a plan knows nothing."""
    plain = plan_for(None, training=training)
    grown_s = plan_for(HostCosts(**{field: COST_S}), training=training).timeline.makespan_s
    assert grown_s - plain.timeline.makespan_s == pytest.approx(events * COST_S, abs=1e-9)


def test_one_device_is_spared() -> None:
    """A model on one device has no wrapped layers: its output's transfer is what it pays for."""
    costs = HostCosts.usual()
    plain, plan = (plan_for(host, training=False, alone=True) for host in (None, costs))
    for grown_s in (
        plan.timeline.makespan_s - plain.timeline.makespan_s,
        ran_s(plan, training=False) - ran_s(plain, training=False),
    ):
        assert grown_s == pytest.approx(costs.transfer_s, abs=1e-9)


@pytest.mark.parametrize("runnable", list(runnables(quick=True)), ids=lambda runnable: runnable.name)
@pytest.mark.parametrize("mode", ["inference", "sgd"])
def test_prediction(runnable: Runnable, mode: str) -> None:
    """With all costs, a predicted step is within 5 % of the emulated one."""
    graph = profiled(runnable, "A100-80GB", mode != "inference")
    cluster = replace(Cluster.virtual(2, memory="64GiB"), host=HostCosts.usual())
    plan = baechi.place(graph, cluster, "random:1")
    assert plan.timeline.makespan_s == pytest.approx(emulated(plan, runnable, mode).makespan_s, rel=0.05)


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
