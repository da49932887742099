"""What torch takes of the host, as a graph says it, beside what the emulated cluster charges."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import baechi
from baechi.records.device import TORCH_WORK

_OF_COPIES = ("view", "operator", "recorded", "node")
CHARGED = replace(baechi.Cluster.virtual(2), host=baechi.HostCosts.usual())
ALONE = replace(baechi.Cluster.virtual(1), host=baechi.HostCosts.usual())


class _Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.TransformerEncoderLayer(32, 4, 64, batch_first=True) for _ in "123"])
        self.head = nn.Linear(32, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + block(x)
        return self.head(x).square().mean()


class _Towers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = [
            nn.Sequential(*[layer for _ in range(5) for layer in (nn.Linear(128, 128), nn.Tanh())])
            for _ in range(2)
        ]
        self.head = nn.Linear(256, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.cat([self.left(x), self.right(x)], 1)).square().mean()


class _Squares(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).square().mean()


class _Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *[
                layer
                for _ in "1234"
                for layer in (nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
            ]
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x).mean(dim=(2, 3)).logsumexp(1).mean()


MODELS: dict[str, tuple[Callable[[], nn.Module], torch.Tensor]] = {
    "blocks": (_Blocks, torch.ones(8, 16, 32)),
    "towers": (_Towers, torch.ones(16, 128)),
    "convolutions": (_Convolutions, torch.ones(8, 8, 16, 16)),
}


def _predicted_and_dry(name: str, cluster: baechi.Cluster, placer: str, **given: Any) -> tuple[float, float]:
    make, x = MODELS[name]
    model = make()
    graph = baechi.profile(model, x, cluster=cluster, source="estimate", **given)
    made = baechi.place(graph, cluster, placer, **given)
    reorder = "auto" if given else False
    return made.timeline.makespan_s, baechi.dry_run(model, x, made, reorder=reorder).makespan_s


@pytest.mark.parametrize("name", MODELS)
def test_a_predicted_step_has_what_torch_takes(name: str) -> None:
    """The host bounds these: launches alone are a fifth of a step."""
    predicted_s, dry_s = _predicted_and_dry(name, ALONE, "single")
    assert predicted_s == pytest.approx(dry_s, rel=0.05)
    assert _predicted_and_dry(name, replace(ALONE, host=None), "single")[0] < 0.4 * dry_s


@pytest.mark.parametrize("name", MODELS)
def test_so_has_one_on_two_devices(name: str) -> None:
    predicted_s, dry_s = _predicted_and_dry(name, CHARGED, "m-topo")
    assert predicted_s == pytest.approx(dry_s, rel=0.1)


@pytest.mark.parametrize("name", MODELS)
def test_so_has_a_pipeline(name: str) -> None:
    """Lanes and tasks take more of the host than torch does."""
    predicted_s, dry_s = _predicted_and_dry(name, CHARGED, "chain", microbatches=4)
    assert predicted_s == pytest.approx(dry_s, rel=0.1)


def test_what_is_counted_is_what_the_emulation_counts() -> None:
    """By kind of work, forward and backward of a chain; what a capture adds does not count."""
    model, x = _Squares(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1)), torch.ones(4, 8)
    graph = baechi.profile(model, x, cluster=ALONE, source="estimate")
    counted: dict[str, float] = {}
    for _, costs in graph.placed_costs():
        for work in (costs.host_work, costs.backward_host_work):
            for what, times in (work or {}).items():
                counted[what] = counted.get(what, 0) + times
    emulated = replace(ALONE, host=None)
    copy = baechi.distribute(model, x, cluster=emulated, placer="single", source="estimate", verbose=False)
    with emulated:
        before = emulated.emulation.charged.copy()
        copy(x).backward()
        charged = emulated.emulation.charged - before
    weights = len(list(model.parameters()))
    counted["node"] += weights  # which put the gradients
    counted["view"] += weights
    assert counted.keys() == {what for what in charged if what in TORCH_WORK}
    for what, times in counted.items():  # the loss goes home, and its gradient comes back
        assert times <= charged[what] <= times + (4 if what in _OF_COPIES else 0), what
    assert counted["product"] == 2 + 3  # the first layer's input needs no gradient


def test_work_that_is_not_known_is_refused() -> None:
    graph = baechi.profile(nn.Linear(2, 2), torch.ones(1, 2), cluster=ALONE, source="estimate")
    body = graph.body()
    for what, wrong in (("dreaming", 1), ("view", -1)):
        body["nodes"][-1][1]["host_work"] = {what: wrong}
        with pytest.raises(baechi.BaechiError, match="host_work"):
            baechi.LayerGraph.from_body(body)
