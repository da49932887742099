"""A step in microbatches makes as many copies as its plan says, also where a cache is handed along."""

from collections import Counter
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

import baechi
from baechi.backend.virtual.devices import VirtualDevices

MICROBATCHES = 2
IDS = torch.arange(8 * 12).reshape(8, 12) % 60 + 2
IMAGES = torch.linspace(-1, 1, 8 * 3 * 16 * 16).reshape(8, 3, 16, 16)
SMALL = dict(hidden_size=16, intermediate_size=32, num_hidden_layers=4, num_attention_heads=2)
STILL = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)


class Cache:
    """What blocks hand along."""

    def __init__(self) -> None:
        self.items: list[Tensor] = []

    def add(self, item: Tensor) -> Tensor:
        self.items.append(item)
        return torch.stack(self.items).mean(0)


class Block(nn.Module):
    """A layer that computes with what the cache holds."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(16, 16), nn.LayerNorm(16)

    def forward(self, x: Tensor, cache: Any) -> Tensor:
        h: Tensor = self.norm(x + torch.tanh(self.linear(x)))
        if isinstance(cache, Cache):
            return h + cache.add(h) / 10
        cache[len(cache)] = h.mean(-1)
        return h + sum(cache.values())[..., None] / 10


class Own(nn.Module):
    """Four blocks, and a cache object or a dict."""

    def __init__(self, kind: type) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(4)])
        self.head, self.kind = nn.Linear(16, 4), kind

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        cache = self.kind()
        for block in self.blocks:
            x = block(x, cache)
        return {"loss": self.head(x).square().mean()}


class Pairs(nn.Module):
    """CLIP with a loss of rows that do not know each other."""

    def __init__(self) -> None:
        super().__init__()
        text = SMALL | dict(vocab_size=64, max_position_embeddings=16, eos_token_id=63)
        vision = SMALL | dict(image_size=16, patch_size=8)
        config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=8)
        self.clip = transformers.CLIPModel(config)

    def forward(self, input_ids: Tensor, pixel_values: Tensor) -> dict[str, Tensor]:
        made = self.clip(input_ids=input_ids, pixel_values=pixel_values)
        return {"loss": (made.text_embeds * made.image_embeds).sum(-1).mean()}


def own(kind: type) -> tuple[nn.Module, dict[str, Tensor]]:
    return Own(kind), {"x": torch.linspace(-1, 1, 8 * 16).reshape(8, 16)}


def built(name: str) -> tuple[nn.Module, dict[str, Tensor]]:
    """A model with its batch."""
    ids = {"input_ids": IDS, "labels": IDS}
    if name in ("own cache", "own dict"):
        return own(Cache if name == "own cache" else dict)
    if name == "clip":
        return Pairs(), {"input_ids": IDS, "pixel_values": IMAGES}
    if name == "gpt2":
        off = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
        config: Any = transformers.GPT2Config(n_layer=4, n_embd=32, n_head=2, vocab_size=64, **off)
        return transformers.GPT2LMHeadModel(config), ids
    if name == "t5":
        config = transformers.T5Config(
            vocab_size=64, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, decoder_start_token_id=0
        )
        return transformers.T5ForConditionalGeneration(config), ids
    if name == "llama":
        config = transformers.LlamaConfig(vocab_size=64, num_key_value_heads=2, **SMALL)
        return transformers.LlamaForCausalLM(config), ids
    if name == "bert":
        return transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=64, **SMALL, **STILL)), ids
    config = transformers.ViTConfig(image_size=16, patch_size=8, **SMALL, **STILL)
    labels = torch.zeros(8, dtype=torch.long)
    return transformers.ViTForImageClassification(config), {"pixel_values": IMAGES, "labels": labels}


@pytest.mark.default_cases(1)
@pytest.mark.parametrize("name", ["own dict", "own cache", "gpt2", "t5", "llama", "bert", "clip", "vit"])
def test_as_many_copies_as_the_plan_says(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy for each edge of the plan, and inputs to each device; backward at most a gradient for each."""
    torch.manual_seed(0)
    model, batch = built(name)
    cluster = baechi.Cluster.virtual(2)
    baechi.distribute(model, batch, cluster=cluster, placer="even", microbatches=MICROBATCHES)
    plan = baechi.plan_of(model).plan
    where = plan.device_of
    crossing = {(a, where[b]) for a, b in plan.graph.edges if where.get(a, where[b]) != where[b]}
    made: Counter[str] = Counter()
    copy = VirtualDevices.copy

    def counted(self: Any, tensor: Tensor, target: str, *args: Any, gradient: bool = False) -> Tensor:
        from_host = not gradient and self.place_of(tensor) == self.host
        made["gradient" if gradient else "from the host" if from_host else "forward"] += 1
        return copy(self, tensor, target, *args, gradient=gradient)

    monkeypatch.setattr(VirtualDevices, "copy", counted)
    for emulated in (False, True):
        with cluster if emulated else nullcontext():
            for _ in range(3):  # the first two are judged beside the whole batch
                made.clear()
                model(**batch)["loss"].backward()
        home = 3  # for all microbatches together: the loss, and gradients of inputs, go back to the host
        assert made["forward"] <= MICROBATCHES * (len(crossing) + len(batch)) + home
        assert made["gradient"] <= MICROBATCHES * len(crossing)
        assert made["from the host"] <= MICROBATCHES * 2 * len(batch) + home
