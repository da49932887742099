"""Splitting a layer of a graph."""

import pytest
import torch
import torch.nn.functional as F
from run.split.split_layers import Around, Tied, twins, words
from run.split.test_chains import Attention
from torch import nn

import baechi
from baechi import LayerGraph
from baechi.errors import PlanError
from baechi.split.rewrite import split as split_layers


def tied_graph() -> LayerGraph:
    model, _ = twins(Tied)
    return baechi.profile(model, (words(2, 5), words(2, 5)), cluster=baechi.Cluster.virtual(2))


def of_layer(layer: nn.Module, *shape: int) -> LayerGraph:
    model, _ = twins(lambda: Around(layer))
    given = (
        words(*shape, below=5) if isinstance(layer, nn.Embedding) else nn.Parameter(words(*shape).double())
    )
    return baechi.profile(model, given, cluster=baechi.Cluster.virtual(2))


def test_bytes_and_seconds_are_shared() -> None:
    """Shards together have the layer's weights and work; the join has its output. The graph stays."""
    graph = tied_graph()
    before = graph.to_json()
    split = baechi.split(graph, "middle", {"in": 4})
    assert graph.to_json() == before
    shards = [f"middle[{number}]" for number in range(4)]
    for amount in ("param_bytes", "grad_bytes", "flops", "backward_flops"):
        assert sum(split.amount(shard, amount) for shard in shards) == pytest.approx(
            graph.amount("middle", amount)
        )
    kind = next(iter(graph.costs("middle").forward_s))  # type: ignore[arg-type]
    assert sum(split.seconds(t, "forward_s", kind) for t in shards) == pytest.approx(
        graph.seconds("middle", "forward_s", kind)
    )
    assert split.amount("middle[join]", "output_bytes") == graph.amount("middle", "output_bytes")
    assert [split.edge_costs("embed", shard).bytes for shard in shards] == [160, 160, 80, 80]
    assert split.costs("middle[0]").weights == ["middle.weight[0]", "middle.bias"]
    assert split.costs("middle[3]").weights == ["middle.weight[3]"]


def test_unknown_attributes_are_kept() -> None:
    """Also those that are called as an argument of a method of NetworkX."""
    graph = tied_graph()
    graph.nodes["embed"]["self"] = 1
    graph.edges["embed", "middle"]["self"] = 2
    split = baechi.split(graph, "middle", 2)
    assert split.nodes["embed"]["self"] == 1 and split.edges["embed", "middle[1]"]["self"] == 2


class Chooses(nn.Module):
    """Two layers run in one case only, and may hand each other what no code here shows."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.then, self.otherwise = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return self.otherwise(x)
        made: torch.Tensor = self.then(self.first(x))
        return made


def test_layers_that_did_not_run_stay_together() -> None:
    """Also where the layer that they lay with is split."""
    graph = baechi.profile(Chooses(), torch.ones(2, 4), cluster=baechi.Cluster.virtual(2))
    for spec in ({"out": 2}, {"in": 2}):
        split = baechi.split(graph, "otherwise", spec)
        together = [set(members) for members in split.groups().values()]
        assert any({"first", "then", "otherwise[join]"} <= members for members in together)


def test_ties_are_split_alike() -> None:
    """Shards of tied layers share a device, one by one, and so does each shard of a cross entropy."""
    for name, spec in (("head", {"out": 3}), ("embed", {"num_embeddings": 3})):
        split = baechi.split(tied_graph(), name, spec)
        groups = [set(members) for members in split.groups().values()]
        for number in range(3):
            shards = {f"{node}[{number}]" for node in ("embed", "head", "glue:/cross_entropy#0")}
            assert any(shards <= group for group in groups)
        assert "embed[join]" in split and "head[join]" not in split
    assert LayerGraph.from_json(split.to_json()).to_json() == split.to_json()


def test_every_call_is_split() -> None:
    """A layer that is called twice is split at both calls, whose shards share their devices."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: nn.Parameter) -> nn.Parameter:
            return self.layer(self.layer(x).relu())  # type: ignore[no-any-return]

    graph = baechi.profile(Twice().double(), words(3, 4).double(), cluster=baechi.Cluster.virtual(2))
    split = baechi.split(graph, "layer", 2)
    groups = split.groups().values()
    assert {"layer[0]", "layer[0]#1"} in [set(members) for members in groups]
    assert list(split.successors("layer[join]")) == ["glue:/relu#0"]


def test_devices_are_pins() -> None:
    """Shards and joins of a spec with devices are pinned there; numbers need the cluster."""
    cluster = baechi.Cluster.virtual(3)
    spec = baechi.BatchSpec({"out": 2}, [2, 0], base_device="cpu:1")
    split = baechi.split(tied_graph(), "middle", spec, cluster=cluster)
    pins = {name: costs.pin for name, costs in split.placed_costs() if costs.pin}
    assert pins == {"middle[0]": "cpu:2", "middle[1]": "cpu:0", "middle[2]": "cpu:2", "middle[join]": "cpu:1"}
    plan = baechi.place(split, cluster, effort=0)
    assert all(plan.device_of[name] == device for name, device in pins.items())
    with pytest.raises(ValueError, match="give cluster="):
        baechi.split(tied_graph(), "middle", spec)
    with pytest.raises(ValueError, match="'cpu:9' is no device"):
        baechi.split(tied_graph(), "middle", baechi.BatchSpec({"out": 2}, ["cpu:9"]), cluster=cluster)


def test_what_cannot_be_split_says_why() -> None:
    """Each refusal names the layer and the reason."""
    graph = tied_graph()
    alone = baechi.profile(nn.Linear(3, 4), torch.ones(2, 3), cluster=baechi.Cluster.virtual(2))
    with pytest.raises(PlanError, match="the model itself is the layer"):
        baechi.split(alone, "", 2)
    for name, reason in (("tail", "no layer 'tail'"), ("glue:/relu#0", "no layer")):
        with pytest.raises(PlanError, match=reason):
            baechi.split(graph, name, 2)
    with pytest.raises(PlanError, match="shard already"):
        baechi.split(baechi.split(graph, "middle", 2), "middle[0]", 2)
    with pytest.raises(PlanError, match=r"layer \(Conv2d\) cannot be split: .* 2 groups"):
        baechi.split(of_layer(nn.Conv2d(2, 4, 1, groups=2), 2, 2, 3, 3), "layer", 2)
    with pytest.raises(PlanError, match="max_norm=1"):
        baechi.split(of_layer(nn.Embedding(9, 3, max_norm=1.0), 4), "layer", 2)
    with pytest.raises(PlanError, match=r"sparse=True, scale_grad_by_freq=True"):
        baechi.split(of_layer(nn.Embedding(9, 3, sparse=True, scale_grad_by_freq=True), 4), "layer", 2)
    with pytest.raises(PlanError, match=r"BatchNorm1d\) cannot be split: no rule.*register_split"):
        baechi.split(of_layer(nn.BatchNorm1d(4), 3, 4), "layer", {"rows": 2})
    with pytest.raises(PlanError, match=r"ReLU\) cannot be split: it writes its input \(inplace=True\)"):
        baechi.split(of_layer(nn.ReLU(inplace=True), 3, 4), "layer", 2)
    replaced = nn.Linear(4, 4)
    replaced.forward = lambda x: 2 * F.linear(x, replaced.weight)  # type: ignore[method-assign]
    with pytest.raises(PlanError, match="its forward was replaced on this one layer"):
        baechi.split(of_layer(replaced, 3, 4), "layer", 2)
    with pytest.raises(PlanError, match=r"it is inside layer, which is one layer \(.*split_module_classes="):
        baechi.split(of_layer(Attention("fused"), 2, 3, 8), "layer.q", 2)
    with pytest.raises(PlanError, match=r"one layer \(torch may .*; a module of your own, .* is divided\)"):
        baechi.split(of_layer(nn.TransformerEncoderLayer(8, 2, 16), 2, 3, 8), "layer.linear1", 2)
    with pytest.raises(PlanError, match="embed is to be split in two ways"):
        split_layers(graph, {"head": {"out": 2}, "embed": {"dim": 2}})
