"""A story: two towers on a fast and a slow device, the report, and the switch for debugging."""

import pytest
import torch
from stories.weights import assert_same_weights
from torch import Tensor, nn
from torch.nn import functional as F

import baechi
from baechi import report

pytestmark = pytest.mark.full


class Tower(nn.Module):
    """Turns features of one kind into a code."""

    def __init__(self, features: int, width: int, depth: int) -> None:
        super().__init__()
        self.widen = nn.Linear(features, width)
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.code = nn.Linear(width, 32)

    def forward(self, x: Tensor) -> Tensor:
        x = self.widen(x)
        for block in self.blocks:
            x = x + block(x).relu()
        return F.normalize(self.code(x), dim=-1)


class TwoTowers(nn.Module):
    """Pictures and texts that belong together have codes that do."""

    def __init__(self) -> None:
        super().__init__()
        self.pictures, self.texts = Tower(256, 1024, 8), Tower(128, 1024, 6)

    def forward(self, pictures: Tensor, texts: Tensor) -> Tensor:
        return self.pictures(pictures) @ self.texts(texts).t()


def batches() -> list[tuple[Tensor, Tensor]]:
    drawn = torch.Generator().manual_seed(1)
    return [(torch.randn(64, 256, generator=drawn), torch.randn(64, 128, generator=drawn)) for _ in range(3)]


def build() -> nn.Module:
    torch.manual_seed(0)
    return TwoTowers()


def train(model: nn.Module) -> list[float]:
    """Losses of three steps."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    losses = []
    for pictures, texts in batches():
        optimizer.zero_grad()
        loss = F.cross_entropy(8 * model(pictures, texts), torch.arange(64))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.fixture(scope="module")
def plain() -> tuple[nn.Module, list[float]]:
    """The plain model after training, and its losses."""
    model = build()
    return model, train(model)


@pytest.mark.parametrize("way", ["on", "off", "off by the environment", "off for a stretch"])
def test_unequal_devices(
    plain: tuple[nn.Module, list[float]], way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the switch on or off: both devices are used, and the numbers are those of one."""
    if way == "off by the environment":
        monkeypatch.setenv("BAECHI_REORDER", "0")
    cluster = baechi.Cluster.virtual(like=["RTX-4090", "RTX-3090"], memory="1GiB")
    options = {"reorder": False} if way == "off" else {}
    model = baechi.distribute(build(), batches()[0], cluster=cluster, optimizer="adam", **options)
    assert len(baechi.plan_of(model).devices_used) == 2
    with cluster, baechi.reordering(model, way != "off for a stretch"):
        losses = train(model)
    assert losses == pytest.approx(plain[1], rel=1e-5)
    assert_same_weights(model, plain[0])


def test_the_report_and_the_switch() -> None:
    """The report names what bounds the step and both devices; `check` finds the same numbers in all ways."""
    cluster = baechi.Cluster.virtual(like=["RTX-4090", "RTX-3090"], memory="1GiB")
    model = baechi.distribute(build(), batches()[0], cluster=cluster, optimizer="adam")
    plan = baechi.plan_of(model)
    with cluster:
        train(model)
        measured = baechi.last_step(model)
    # As a step begins, the slower device may still be at the optimizer's work of the step before.
    assert measured.makespan_s == pytest.approx(plan.timeline.makespan_s, rel=0.05)
    text = report.to_text(plan, measured)
    for words in ("why not faster?", "fullest", "what to change", *cluster.names):
        assert words in text
    checked = baechi.check(model, batches()[0])
    assert "the same outputs" in str(checked)
    for way in ("one device", "reordering off", "reordering on"):
        assert way in str(checked)
