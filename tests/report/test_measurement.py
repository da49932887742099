"""The verdict on a measured step: that of the model, whatever else the devices do."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import baechi
from baechi.records import Span, Timeline
from baechi.report.facts import Facts


class Towers(nn.Module):
    """Two chains of large layers of unequal width, multiplied at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Sequential(*(nn.Linear(1536, 1536) for _ in range(4)))
        self.right = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(4)))
        self.last = nn.Linear(1024, 1536)

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        return (self.left(one) * self.last(self.right(other))).sum(1)


def batch() -> tuple[Tensor, Tensor]:
    return torch.ones(128, 1536), torch.ones(128, 1024)


def trained(around: Callable[[nn.Module], object]) -> Facts:
    """Towers on two emulated devices after three steps, with something else before each."""
    model, cluster = Towers(), baechi.Cluster.virtual(2, like="RTX-3090")
    baechi.distribute(model, batch(), cluster=cluster, device_map={"left": 0, "right": 1, "last": 1})
    with cluster:
        for _ in range(3):
            around(model)
            model.zero_grad()
            model(*batch()).square().mean().backward()
    return Facts(baechi.plan_of(model), baechi.last_step(model))


def adam(model: nn.Module) -> None:
    """An optimizer's step, which takes longer than the model."""
    for weight in model.parameters():
        weight.grad = torch.ones_like(weight)
    torch.optim.Adam(model.parameters(), foreach=True).step()


def clipped(model: nn.Module) -> None:
    """Gradients clipped: the host waits, the devices are done with it when the step begins."""
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()


@pytest.mark.parametrize("around", [lambda model: None, adam, clipped], ids=["nothing", "adam", "clipped"])
def test_work_around_the_model_changes_no_verdict(around: Callable[[nn.Module], object]) -> None:
    """The same bound in the same place as predicted, and hardly any waiting for the host."""
    facts = trained(around)
    assert facts.measured is not None and facts.measured_reading is not None
    ours, theirs = facts.reading, facts.measured_reading
    assert (theirs.bound, theirs.where) == (ours.bound, ours.where)
    assert theirs.host_s < 0.1 * facts.measured.makespan_s


def test_no_share_is_more_than_all() -> None:
    """A device that ran most of forward while the other one still worked for the step before."""
    facts = trained(adam)
    assert facts.measured is not None
    for device in facts.plan.cluster.names:
        assert facts.measured.busy_s(device) <= facts.measured.makespan_s
    spans = (Span("compute", "a", "d0", 0, 5), Span("compute", "b", "d0", 5, 9, "backward"))
    assert Timeline(spans, 6.0, {}).busy_s("d0") == 6.0
