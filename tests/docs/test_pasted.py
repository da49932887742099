"""The blocks of the first pages can be pasted one after the other."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from docs.pages import blocks
from safetensors.torch import save_file
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


def of_the_plain_model(verb: Callable[..., Any]) -> Callable[..., Any]:
    """The same verb, which undoes what was done to the model before."""

    def called(model: nn.Module, *arguments: Any, **options: Any) -> Any:
        with contextlib.suppress(baechi.BaechiError):  # it is plain
            baechi.restore(model)
        return verb(model, *arguments, **options)

    return called


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


def test_the_readme(no_gpu_needed: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given a model, its batch, an optimizer's loop and a checkpoint, which a reader has.

    A block may show several ways to distribute one model: each begins with the plain one.
    """
    monkeypatch.chdir(tmp_path)
    model, ids = Translator(), torch.zeros(4, 3, dtype=torch.long)
    Path("checkpoint").mkdir()
    save_file(model.state_dict(), "checkpoint/model.safetensors")
    for verb in ("distribute", "profile", "assign", "fits"):
        monkeypatch.setattr(baechi, verb, of_the_plain_model(getattr(baechi, verb)))
    names = {"torch": torch, "model": model, "batch": ids, "ids": ids, "loader": [ids, ids]}
    names["optimizer"] = torch.optim.Adam(model.parameters())
    assert paste("README.md", names) > 0
