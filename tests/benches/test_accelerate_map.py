"""Accelerate's own device map as a plan."""

import logging

import pytest
import torch
from torch import nn

from baechi.errors import BaechiError, PlacementError
from baechi.records.cluster import Cluster
from baechi.records.graph import LayerGraph
from baechi.verbs.profile import profile
from benches import accelerate_map
from benches.accelerate_map import accelerate_plan

pytest.importorskip("accelerate")

LAYER = 4 * (64 * 64 + 64)  # bytes of weights


class Pair(nn.Module):
    """Two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One after the other."""
        x = self.two(self.one(x))
        return x


class Scaled(nn.Module):
    """Layers, and a weight that belongs to the model itself."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(64))
        self.pairs = nn.Sequential(*[Pair() for _ in range(4)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scale, and run the layers."""
        scaled: torch.Tensor = self.pairs(x * self.scale)
        return scaled


def pairs() -> nn.Sequential:
    return nn.Sequential(*[Pair() for _ in range(4)])


def graph_of(model: nn.Module, cluster: Cluster, **options: object) -> LayerGraph:
    x = torch.ones(1, 64)
    return profile(model, x, cluster=cluster, training=False, source="estimate", **options)  # type: ignore[arg-type]


def test_balanced() -> None:
    """With room for all on each device, the weights are shared out, in the order of the code."""
    cluster, model = Cluster.uniform(2), pairs()
    plan = accelerate_plan(model, graph_of(model, cluster), cluster)
    assert plan.placer == "accelerate"
    assert plan.devices_used == ("device:0", "device:1")
    devices = [plan.device_of[name] for name in plan.order]
    assert devices == sorted(devices)


def test_classes_that_are_kept_whole() -> None:
    """A pair that is one layer is not cut by accelerate either; a pair that is two layers may be."""
    cluster, model = Cluster.uniform(3), pairs()
    whole = graph_of(model, cluster, no_split_module_classes=["Pair"])
    assert set(accelerate_plan(model, whole, cluster).device_of) == {"0", "1", "2", "3"}
    split = accelerate_plan(model, graph_of(model, cluster), cluster)
    assert any(split.device_of[f"{n}.one"] != split.device_of[f"{n}.two"] for n in range(4))


def test_weights_that_do_not_fit() -> None:
    """What accelerate leaves to the disk is no placement: it is said by name."""
    cluster, model = Cluster.uniform(2, memory=3 * LAYER), pairs()
    with pytest.raises(PlacementError, match=r"leaves \d+ modules to the host, the first is '\d"):
        accelerate_plan(model, graph_of(model, cluster), cluster)


def test_activations_that_do_not_fit() -> None:
    """A map whose weights fit, and nothing beside them, is refused as any placement is."""
    cluster, model = Cluster.uniform(2, memory=5 * LAYER), pairs()
    graph = graph_of(model, cluster)
    accelerate_plan(model, graph, cluster)
    graph.nodes["0.one"]["temp_bytes"] = 5 * LAYER
    with pytest.raises(PlacementError, match=r"the accelerate placement needs more memory .* device:0"):
        accelerate_plan(model, graph, cluster)


def test_weight_of_the_model_itself() -> None:
    """A weight that the map places by its own name takes the work on it along."""
    cluster, model = Cluster.uniform(2), Scaled()
    graph = graph_of(model, cluster)
    [scaling] = [name for name in graph.placed() if name.startswith("glue:")]
    assert accelerate_plan(model, graph, cluster).device_of[scaling] == "device:0"


def test_meta_and_quiet(caplog: pytest.LogCaptureFixture) -> None:
    """A model without weights will do, and accelerate does not complain of devices that are not here."""
    cluster, model = Cluster.uniform(2), pairs().to("meta")
    with caplog.at_level(logging.WARNING):
        plan = accelerate_plan(model, graph_of(model, cluster), cluster)
    assert len(plan.devices_used) == 2
    assert not [record for record in caplog.records if record.name.startswith("accelerate")]


def test_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without accelerate the cure is said."""
    monkeypatch.setattr(accelerate_map, "is_installed", lambda: False)
    cluster, model = Cluster.uniform(2), pairs()
    with pytest.raises(BaechiError, match="pip install accelerate"):
        accelerate_plan(model, graph_of(model, cluster), cluster)
