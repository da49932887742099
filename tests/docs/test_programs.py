"""The short programs of the guide, and of its neighbours, run line by line."""

import ast
from pathlib import Path
from typing import Any

import pytest
import torch
from docs.pages import blocks, printed_by, recipes
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

import baechi

pytestmark = pytest.mark.full


class Translator(nn.Module):
    """An encoder and a decoder, called as the snippets call a model."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 4))
        self.decoder = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 10))

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> Tensor:
        scores: Tensor = self.decoder(self.encoder(input_ids))
        return scores if labels is None else nn.functional.cross_entropy(scores.transpose(1, 2), labels)


TINY = LlamaConfig(
    hidden_size=16,
    intermediate_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=2,
    vocab_size=32,
    tie_word_embeddings=False,
)


def given() -> dict[str, Any]:
    """What the snippets take for granted."""
    ids = torch.zeros(2, 3, dtype=torch.long)
    by_count: dict[str, Any] = {}
    exec(blocks("docs/placers.md", "python")[0][1], by_count)
    return {
        "model": Translator(),
        "batch": ids,
        "cluster": baechi.Cluster.virtual(2, memory="1GiB"),
        "by_count": by_count["by_count"],
        "config": TINY,
    }


SNIPPETS = [
    (name, number, code)
    for name in ("docs/guide.md", "docs/troubleshooting.md")
    for number, (_, code) in enumerate(blocks(name, "python"))
    if code not in recipes().values()
]


@pytest.mark.parametrize(
    "name, number, code", SNIPPETS, ids=[f"{name}-{number}" for name, number, _ in SNIPPETS]
)
def test_the_snippets(
    name: str, number: int, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each line runs; a line that distributes a model gets a plain one, as a reader's would be."""
    names = given()
    monkeypatch.chdir(tmp_path)
    model, cluster, batch = names["model"], names["cluster"], names["batch"]
    Path("folder/of/the/checkpoint").mkdir(parents=True)
    save_file(LlamaForCausalLM(TINY).state_dict(), "folder/of/the/checkpoint/model.safetensors")
    baechi.place(baechi.profile(model, batch, cluster=cluster), cluster).save("plan.json")
    if name == "docs/troubleshooting.md":
        baechi.distribute(model, batch, cluster=cluster)
        with cluster:
            model(batch)
    plain_again = "LlamaForCausalLM" not in code
    for statement in ast.parse(code).body:
        line = ast.unparse(statement)
        if plain_again and any(verb in line for verb in ("distribute(", "profile(", "fits(")):
            names["model"] = Translator()
        printed_by(line, names)
