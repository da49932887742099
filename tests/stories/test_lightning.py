"""A story: Lightning trains over two devices, validates, and resumes from its own checkpoint on three."""

from pathlib import Path
from typing import Any

import pytest
import torch
from docs.pages import recipes
from stories.weights import assert_same_weights
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import baechi

lightning = pytest.importorskip("lightning", reason="Lightning is not installed")
pytestmark = pytest.mark.full


class Towers(lightning.LightningModule):  # type: ignore[misc, name-defined]
    """Two branches, joined; knows its loss, its optimizer and its schedule."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 32), nn.Sequential(nn.Linear(6, 32), nn.ReLU())
        self.head = nn.Linear(64, 2)
        self.losses: dict[int, float] = {}
        self.validated: dict[int, float] = {}

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(torch.cat([self.first(x), self.second(x)], 1))
        return scores

    def training_step(self, batch: Any, index: int) -> Tensor:
        x, y = batch
        loss = nn.functional.cross_entropy(self(x), y)
        self.losses[self.current_epoch * 10 + index] = loss.item()
        return loss

    def validation_step(self, batch: Any, index: int) -> None:
        x, y = batch
        self.validated[self.current_epoch] = nn.functional.cross_entropy(self(x), y).item()

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=1e-2)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)}


def build() -> Towers:
    torch.manual_seed(0)
    return Towers()


def loader(seed: int) -> DataLoader[Any]:
    drawn = torch.Generator().manual_seed(seed)
    return DataLoader(
        TensorDataset(torch.randn(32, 6, generator=drawn), torch.randint(2, (32,), generator=drawn)), 8
    )


def placed_strategy() -> Any:
    """The strategy that the page shows, taken from there."""
    strategy, separator, _ = recipes()["Lightning"].partition("\n\n\nno_gpu = ")
    assert separator
    names: dict[str, Any] = {}
    exec(strategy, names)
    return names["PlacedStrategy"](device=torch.device("cpu"))


def fit(model: nn.Module, epochs: int, folder: Path, placed: bool, **options: Any) -> Any:
    """Train, with clipping and accumulation."""
    trainer = lightning.Trainer(
        strategy=placed_strategy() if placed else "auto",
        accelerator="cpu",
        max_epochs=epochs,
        accumulate_grad_batches=2,
        gradient_clip_val=0.5,
        default_root_dir=folder,
        enable_checkpointing=False,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, loader(1), loader(2), **options)
    return trainer


def spread(model: nn.Module, devices: int) -> Any:
    (x, _), *_ = loader(1)
    cluster = baechi.Cluster.virtual(devices, memory="1GiB")
    baechi.distribute(model, x, cluster=cluster, placer="round-robin", optimizer="adam", accumulate=True)
    assert len(baechi.plan_of(model).devices_used) == devices
    return model


def test_lightning(tmp_path: Path) -> None:
    """Losses, validations and weights are those of the plain module, which trained four epochs in one go."""
    plain = build()
    fit(plain, 4, tmp_path, placed=False)

    begun = spread(build(), 2)
    fit(begun, 2, tmp_path, placed=True).save_checkpoint(tmp_path / "two.ckpt")
    resumed = spread(build(), 3)
    fit(resumed, 4, tmp_path, placed=True, ckpt_path=tmp_path / "two.ckpt")

    assert {**begun.losses, **resumed.losses} == pytest.approx(plain.losses, rel=1e-5)
    assert {**begun.validated, **resumed.validated} == pytest.approx(plain.validated, rel=1e-5)
    assert_same_weights(resumed, plain)
