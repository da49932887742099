"""The guide's training scripts run with the real packages, and train what they train without baechi."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from docs.pages import recipes
from process_group import process_group
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM

import baechi

pytestmark = pytest.mark.full

lightning = pytest.importorskip("lightning", reason="Lightning is not installed")

PROGRAMS = recipes()


class Towers(nn.Module):
    """Two branches, joined."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Sequential(nn.Linear(6, 8), nn.ReLU())
        self.head = nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.cat([self.first(x), self.second(x)], 1))


class Lit(lightning.LightningModule):  # type: ignore[misc, name-defined]
    """The same, as Lightning has it."""

    def __init__(self) -> None:
        super().__init__()
        self.towers = Towers()

    def forward(self, x: Tensor) -> Tensor:
        return self.towers(x)

    def training_step(self, x: Tensor, index: int) -> Tensor:
        loss = loss_of(self(x))
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def loss_of(out: Tensor) -> Tensor:
    return (out - 1).square().mean()


def given() -> dict[str, Any]:
    """What the programs take for granted, the same each time."""
    torch.manual_seed(0)
    sizes = dict(
        hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, vocab_size=32
    )
    ids = torch.randint(32, (4, 6))
    x = torch.randn(12, 6)
    return {
        "model": Towers(),
        "lightning_module": Lit(),
        "language_model": LlamaForCausalLM(LlamaConfig(**sizes, pad_token_id=0)),
        "rows": [{"input_ids": row, "labels": row} for row in ids],
        "sentences": Sentences(ids),
        "batch": x[:4],
        "loader": DataLoader(x, batch_size=3),
        "loss_of": loss_of,
    }


class Sentences:
    """Sentences that are their own labels."""

    def __init__(self, ids: Tensor) -> None:
        self.ids = ids

    def __getitem__(self, which: slice) -> dict[str, Tensor]:
        return {"input_ids": self.ids[which], "labels": self.ids[which]}


DISTRIBUTE = baechi.distribute


def spread(model: nn.Module, batch: Any, **options: Any) -> nn.Module:
    """Distribute over two emulated devices, both of which are used."""
    return DISTRIBUTE(model, batch, cluster=baechi.Cluster.virtual(2), placer="round-robin", **options)


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    """A process group of this process alone, for DDP."""
    with process_group(tmp_path / "meeting"):
        yield


def trained(program: str, distribute: Callable[..., nn.Module]) -> nn.Module:
    """The model after a program, on no GPU, without a compiler, with this function for `distribute`."""
    names = given()
    torch.manual_seed(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(baechi, "distribute", distribute)
        patch.setattr(torch.cuda, "is_available", lambda: False)
        exec(program.replace('"inductor"', '"eager"'), names)
    model: nn.Module = names["model"]
    return model


@pytest.mark.parametrize("title", PROGRAMS)
def test_recipe(title: str, group: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights after the program are those that it makes of the plain model."""
    for folder in ("plain", "spread"):
        (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path / "plain")
    plain = trained(PROGRAMS[title], lambda model, batch, **options: model)
    monkeypatch.chdir(tmp_path / "spread")
    model = trained(PROGRAMS[title], spread)
    assert len(baechi.plan_of(model).devices_used) == 2
    expected, found = plain.state_dict(), model.state_dict()
    assert expected.keys() == found.keys()
    for name, weight in expected.items():
        torch.testing.assert_close(found[name].cpu(), weight, rtol=1e-5, atol=1e-6, msg=name)
    begun = given()
    untrained = begun["language_model"] if "Trainer of" in title else begun["model"]
    if isinstance(plain, type(untrained)):
        assert any(
            not torch.equal(a, b) for a, b in zip(plain.parameters(), untrained.parameters(), strict=True)
        )


def test_each_kind_has_one() -> None:
    """What people ask for is there."""
    said = " ".join(PROGRAMS)
    for kind in (
        "Checkpoints",
        "Mixed",
        "accumulation",
        "microbatches",
        "checkpointing",
        "compile",
        "Parallel",
        "Trainer",
        "Lightning",
        "accelerate",
    ):
        assert kind in said, kind
