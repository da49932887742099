"""Plans that were made for devices elsewhere, on the devices that are here."""

from pathlib import Path

import networkx as nx
import pytest
import torch
from same import identical
from torch import nn

import baechi
from baechi.errors import PlanError
from baechi.records import Candidate, Cluster, Device, LayerGraph, Plan
from baechi.records.datasheet import datasheet
from baechi.verbs import application
from baechi.verbs.application import applied, located
from baechi.verbs.ranks.distribution import seated

X = torch.ones(4, 8)


def chain() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))


def offline(text: str, **devices: str) -> Plan:
    """A plan for devices that are not here, made as on a laptop."""
    cluster = Cluster.parse(text)
    graph = baechi.profile(chain(), X, cluster=cluster, training=True)
    return Plan(graph, cluster, devices or {"0": "device:0", "1": "device:0", "2": "device:1"})


def of_kinds(*devices: tuple[str, str, int]) -> Cluster:
    """Emulated devices by name, kind and bytes."""
    return Cluster(
        tuple(
            Device(name, kind, **{**datasheet(kind), "memory_bytes": size}) for name, kind, size in devices
        ),
        emulated=True,
    )


def test_a_plan_made_offline_is_applied(tmp_path: Path) -> None:
    """From its file, on emulated devices of these kinds: it runs, with the plain model's numbers."""
    offline("2xL4").save(tmp_path / "plan.json")
    cluster, expected = Cluster.virtual(like=["L4", "L4"]), chain()(X)
    model = baechi.distribute(chain(), plan=tmp_path / "plan.json", cluster=cluster)
    with cluster:
        assert identical(model(X), expected)
    plan = baechi.plan_of(model)
    assert plan.device_of == {"0": "cpu:0", "1": "cpu:0", "2": "cpu:1"} and plan.cluster == cluster
    assert plan.timeline.peak_bytes.keys() == {"cpu:0", "cpu:1"}
    assert baechi.dry_run(chain(), X, tmp_path / "plan.json").makespan_s > 0


def test_the_devices_that_are_visible_are_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """For `assign`, and for `distribute` with a cluster to plan for, within the memory that is there."""
    seen = of_kinds(("here:0", "L4", 10**9), ("here:1", "A100-80GB", 10**9), ("here:2", "L4", 10**6))
    monkeypatch.setattr(application, "_visible", lambda: seen)
    model = baechi.assign(chain(), offline("2xL4"))
    assert baechi.plan_of(model).device_of == {"0": "here:0", "1": "here:0", "2": "here:2"}
    model = baechi.distribute(chain(), X, cluster=Cluster.uniform(2, like="L4", memory="1MiB"))
    assert [(d.name, d.memory_bytes) for d in baechi.plan_of(model).cluster.devices] == [
        ("here:0", 2**20),
        ("here:2", 10**6),
    ]
    assert located(seen) is seen


def test_what_is_not_here_is_refused_with_both_lists() -> None:
    """Before any work, with the cure; a plan also where a device is too small."""
    for attempt in (
        lambda: baechi.assign(chain(), offline("2xL4")),
        lambda: baechi.distribute(chain(), X, cluster="2xL4"),
    ):
        with pytest.raises(PlanError) as caught:
            attempt()
        assert "device:0 (L4" in str(caught.value) and "there are no accelerators" in str(caught.value)
        assert 'baechi.Cluster.virtual(like=["L4", "L4"])' in str(caught.value)
    small = Cluster.virtual(2, memory="100B", like="L4")
    with pytest.raises(PlanError, match=r"cpu:0 \(L4, 100 B\), cpu:1"):
        applied(offline("2xL4"), small)
    with pytest.raises(PlanError, match=r"needs device:0 \(L4, \d"):
        applied(offline("2xL4"), Cluster.virtual(like=["L4", "A100-80GB"]))


def test_the_ith_of_a_kind_unless_it_is_too_small() -> None:
    """By place; else the devices that are used, in order; else by memory."""
    plan = offline("1xA100-80GB,2xL4", **{"0": "device:2", "1": "device:2", "2": "device:0"})
    need = plan.timeline.peak_bytes["device:2"]
    a100 = ("a", "A100-80GB", 10**9)
    both = of_kinds(("l0", "L4", need), a100, ("l1", "L4", need))
    assert applied(plan, both).device_of == {"0": "l1", "1": "l1", "2": "a"}
    one_small = of_kinds(("l0", "L4", need), a100, ("l1", "L4", need - 1))
    assert applied(plan, one_small).device_of["0"] == "l0"
    only_one = of_kinds(("l0", "L4", need), a100)
    assert applied(plan, only_one).device_of["0"] == "l0"
    last_large = of_kinds(("l0", "L4", 1), ("l1", "L4", 1), a100, ("l2", "L4", need))
    assert applied(plan, last_large).device_of["0"] == "l2"


def test_all_that_names_devices_is_renamed() -> None:
    """Pins and candidates; the cluster's own plan stays the same object."""
    graph = nx.DiGraph(training=False)
    graph.add_node("a", pin="device:1", forward_s=1.0)
    cluster = Cluster.uniform(2, like="L4")
    tried = (Candidate("single", 1.0, {"device:0": 3, "device:1": 4}),)
    plan = Plan(LayerGraph.from_networkx(graph), cluster, {"a": "device:1"}, candidates=tried)
    there = Cluster.virtual(2, like="L4")
    moved = applied(plan, there)
    assert moved.graph.costs("a").pin == moved.device_of["a"] == "cpu:1"
    assert moved.candidates[0].peak_bytes == {"cpu:1": 4}
    assert applied(moved, there) is moved and applied(moved) is moved
    assert plan.graph.costs("a").pin == "device:1"


@pytest.mark.parametrize("text", ["2xA100-80GB", "2x(1xA100-80GB)", "1x(2xA100-80GB)"])
def test_a_pipeline_for_other_devices(text: str, tmp_path: Path) -> None:
    """A file that was made offline, with the orders that were tried there, runs on devices of other names."""
    batch, file = torch.ones(4, 8), tmp_path / "pipeline.json"
    graph = baechi.profile(chain(), batch, cluster=text, source="estimate", microbatches=2)
    planned = baechi.place(graph, text, microbatches=2, placer="even")
    planned.save(file)
    assert planned.tried
    model = baechi.distribute(chain(), batch, plan=file, cluster=Cluster.virtual(2))
    assert set(baechi.plan_of(model).device_of.values()) == {"cpu:0", "cpu:1"}
    model(batch).sum().backward()


def test_hosts_of_a_plan_for_ranks() -> None:
    """Its devices are ranks', and their links those that the hosts had."""
    graph = baechi.profile(chain(), torch.ones(4, 8), cluster="2x(2xL4)", source="estimate", microbatches=2)
    planned = baechi.place(graph, "2x(2xL4)", microbatches=2, placer="even")
    names = [f"rank{rank}/cpu" for rank in range(4)]
    ranks = Cluster(tuple([Device(name, "CPU", 2**30) for name in names]))
    cluster = seated(planned, ranks).cluster
    assert cluster.names == tuple(names) and not cluster.hosts
    for one, other in ((0, 1), (1, 2)):
        were = planned.cluster.names[one], planned.cluster.names[other]
        assert cluster.link_between(names[one], names[other]) == planned.cluster.link_between(*were)
