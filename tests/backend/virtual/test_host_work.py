"""What torch takes of the host: the emulated cluster charges each operator, call, node and update, once."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from baechi.records import Cluster, HostCosts
from baechi.records.device import TORCH_WORK

COST_S = 1e-3


class Small(nn.Module):
    """A convolution and a product, each with a bias; an operator between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(1, 1, 2), nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last((self.first(x) + 1).view(1, -1))


def step(host: HostCosts | None) -> tuple[dict[str, int], float]:
    """A step of training: what was counted, and the host's clock after it."""
    model, cluster = Small(), replace(Cluster.virtual(1), host=host)
    optimizer = torch.optim.SGD(model.parameters(), foreach=True)
    with cluster:
        optimizer.zero_grad()
        model(torch.ones(1, 1, 3, 3)).backward()
        optimizer.step()
        cluster.emulation.synchronize()
        return dict(cluster.emulation.charged), cluster.emulation.now_s


COUNTS = {
    "view": 12,
    "operator": 8,
    "product": 3,  # two in backward
    "convolution": 2,
    "recorded": 6,  # the convolution, + 1, the view, the weight's transpose, the product; ones like the loss
    "module_call": 1,
    "leaf_call": 2,
    "node": 8,  # of the first five but of + 1, which passes its gradient on, and of four weights
    "list": 1,
    "list_tensor": 4,
    "updated_tensor": 4,
    "zeroed_tensor": 4,
}


def test_counts() -> None:
    """Each thing that torch does is counted as often as it does it."""
    assert step(HostCosts())[0] == COUNTS


@pytest.mark.parametrize("what", TORCH_WORK)
def test_each_is_charged(what: str) -> None:
    """The host's clock goes on by what each costs, and by nothing else."""
    assert step(None)[1] == 0
    assert step(HostCosts(**{f"{what}_s": COST_S}))[1] == pytest.approx(COUNTS[what] * COST_S)


class Towers(nn.Module):
    """Two chains of products that meet in a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = (nn.Sequential(*[nn.Linear(4, 4) for _ in range(3)]) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.left(x).sum() + self.right(x).sum()


def test_backward_has_a_thread_for_each_device() -> None:
    """Nodes on two devices are worked off at once: the step is shorter than on one, by half of their time."""
    taken_s = []
    for far in ("cpu:0", "cpu:1"):
        cluster, model = replace(Cluster.virtual(2), host=HostCosts(node_s=COST_S), launch_s=0.0), Towers()
        with cluster:
            model.left.to("cpu:0"), model.right.to(far)
            x = torch.ones(1, 4)
            losses = [model.left(x.to("cpu:0")).sum(), model.right(x.to(far)).sum()]
            begun_s = cluster.emulation.now_s
            torch.autograd.backward(losses)
            cluster.emulation.synchronize()
            taken_s.append(cluster.emulation.now_s - begun_s)
    assert taken_s[1] == pytest.approx(taken_s[0] / 2, rel=0.1)
