"""The simulator beside the run: gradients that are views, and gradients that meet."""

import pytest
import torch
from run.dry.steps import ran
from torch import Tensor, nn

import baechi


class _Sums(nn.Module):
    """The gradient of a sum is expanded: it takes no memory of its own."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(16, 512), nn.Linear(1, 4)

    def forward(self, values: Tensor) -> Tensor:
        hidden = self.first(values)
        made: Tensor = self.second((hidden * hidden).sum(1, keepdim=True))
        return made


class _Meets(nn.Module):
    """The gradient of a view comes from elsewhere, and is added to one that is made here."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(16, 16)
        self.others = nn.Sequential(
            nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1)
        )

    def forward(self, values: Tensor) -> Tensor:
        hidden = self.first(values)
        here = hidden
        for _ in range(4):
            here = here + (hidden**2)
        here = here.sum(1)
        made: Tensor = self.others(hidden.view(-1, 16)).squeeze(1)
        return (made + here).mean()


@pytest.mark.parametrize("placer", ["single", "map", "random:1", "random:2"])
@pytest.mark.parametrize("model", [_Sums, _Meets])
def test_as_it_runs(model: type[nn.Module], placer: str) -> None:
    """Steps within 2 %; peaks are not below the run's, at most 15 % above."""
    values = torch.rand(64, 16)
    cluster = baechi.Cluster.virtual(2, memory="1GiB", like="A100-80GB")
    graph = baechi.profile(model(), values, cluster=cluster, source="estimate", training=True)
    if placer == "map":
        plan = baechi.Plan.from_device_map(graph, cluster, {"": 0, "others": 1, "second": 1})
    else:
        plan = baechi.place(graph, cluster, placer, optimizer="sgd")
    step = ran(model(), (values,), plan, "sgd")
    assert plan.timeline.makespan_s == pytest.approx(step.makespan_s, rel=0.02)
    for name, held in step.peak_bytes.items():
        assert held <= plan.timeline.peak_bytes[name] <= held * 1.15
