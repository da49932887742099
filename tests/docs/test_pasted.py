"""The blocks of the first pages can be pasted one after the other."""

from pathlib import Path
from typing import Any

import pytest
import torch
from docs.pages import blocks
from torch import Tensor, nn

import baechi


class Translator(nn.Module):
    """An encoder and a decoder: what a reader of the README has."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 4))
        self.decoder = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 10))

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> Tensor:
        scores: Tensor = self.decoder(self.encoder(input_ids))
        return scores if labels is None else nn.functional.cross_entropy(scores.transpose(1, 2), labels)


@pytest.fixture
def no_gpu_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an accelerator, an emulated cluster stands for the GPUs that `discover` would find."""
    if not torch.accelerator.is_available():
        emulated = baechi.Cluster.virtual(2, memory="24GiB")
        monkeypatch.setattr(baechi.Cluster, "discover", lambda *_, **__: emulated)


def paste(page: str, names: dict[str, Any]) -> int:
    """Run a page's blocks in order in one namespace; how many there are."""
    pasted = [code for _, code in blocks(page, "python")]
    for number, code in enumerate(pasted, 1):
        exec(compile(code, f"{page}, block {number}", "exec"), names)
    return len(pasted)


def test_the_quick_start(no_gpu_needed: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is given: the page says all that it needs."""
    monkeypatch.chdir(tmp_path)
    assert paste("docs/quick-start.md", {}) > 5


def test_the_readme(no_gpu_needed: None) -> None:
    """Given a model and its batch, which a reader has."""
    assert paste("README.md", {"model": Translator(), "batch": torch.zeros(4, 3, dtype=torch.long)}) > 0
