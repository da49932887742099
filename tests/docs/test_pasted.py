"""The blocks of the first pages can be pasted one after the other."""

import re
from typing import Any

import pytest
import torch
from docs.pages import blocks, check_figures, page, printed_by
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


@pytest.mark.full
def test_the_tutorial(no_gpu_needed: None) -> None:
    """Nothing is given. All of it prints what the page shows; two devices find the losses of one."""
    names: dict[str, Any] = {}
    printed = [""]
    compared = 0
    for language, code in blocks("docs/tutorial.md", "python", "text"):
        if language == "python":
            printed.append(printed_by(code, names))
        else:
            compared += 1
            check_figures("docs/tutorial.md", code, printed[-1])
    assert compared == 9
    assert len(printed) - 1 == 13
    assert printed[1] == printed[2]


def test_the_tutorial_on_gpus(no_gpu_needed: None) -> None:
    """Given the page's model and its batch."""
    (_, model), *_ = blocks("docs/tutorial.md", "python")
    names: dict[str, Any] = {"baechi": baechi}
    printed_by(model.partition("def train(")[0], names)
    names |= {"model": names["TwoTowers"](), "batch": (torch.randn(128, 512), torch.randn(128, 300))}
    text = page("docs/tutorial.md").partition("\n## On your GPUs\n")[2]
    pasted = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    for code in pasted:
        printed_by(code, names)
    assert len(pasted) == 4


def test_the_readme(no_gpu_needed: None) -> None:
    """Given a model and its batch, which a reader has."""
    names: dict[str, Any] = {"model": Translator(), "batch": torch.zeros(4, 3, dtype=torch.long)}
    pasted = blocks("README.md", "python")
    for _, code in pasted:
        printed_by(code, names)
    assert pasted
