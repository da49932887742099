"""A story: where do 13 billion parameters fit? Planned offline, the map used by others, the plan applied."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import dispatch_model
from safetensors.torch import save_file
from stories.weights import assert_same_weights
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

import baechi

pytestmark = pytest.mark.full

LAYERS = 40


def config(width: int, heads: int, words: int) -> LlamaConfig:
    return LlamaConfig(
        hidden_size=width,
        intermediate_size=width * 27 // 10,
        num_hidden_layers=LAYERS,
        num_attention_heads=heads,
        vocab_size=words,
        tie_word_embeddings=False,
        use_cache=False,
    )


def on_meta(sizes: LlamaConfig, dtype: torch.dtype = torch.float32) -> Any:
    """The model without values; its rotary buffers, which are in no checkpoint, have theirs."""
    with torch.device("meta"):
        model = LlamaForCausalLM(sizes).to(dtype)
    model.model.rotary_emb = LlamaRotaryEmbedding(sizes)
    return model


def batch(words: int, length: int) -> dict[str, torch.Tensor]:
    ids = torch.randint(words, (2, length), generator=torch.Generator().manual_seed(1))
    return {"input_ids": ids, "labels": ids}


def losses_of(model: nn.Module) -> list[float]:
    """Two steps."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(2):
        optimizer.zero_grad()
        loss = model(**batch(64, 8)).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_thirteen_billion(tmp_path: Path) -> None:
    """It fits four A100s and not one; its map, as JSON, places a small twin, here and by accelerate."""
    large = on_meta(config(5120, 40, 32000), torch.bfloat16)
    assert sum(weight.numel() for weight in large.parameters()) > 12.9e9
    devices = baechi.Cluster.parse("4xA100-80GB")
    graph = baechi.profile(large, batch(32000, 512), cluster=devices, source="estimate")
    with pytest.raises(baechi.PlacementError, match="short"):
        baechi.place(graph, baechi.Cluster.parse("1xA100-80GB"), "single", optimizer="adam")
    plan = baechi.place(graph, devices, optimizer="adam")
    peaks = plan.timeline.peak_bytes
    assert all(peaks[device.name] <= device.memory_bytes for device in devices.devices)

    plan.save(tmp_path / "plan.json")
    emulated = baechi.Cluster.virtual(4, like="A100-80GB")
    baechi.assign(large, str(tmp_path / "plan.json"), cluster=emulated)
    assert len(baechi.plan_of(large).devices_used) == len(plan.devices_used) > 1
    (tmp_path / "map.json").write_text(json.dumps(plan.to_device_map(index=True)))

    mapping = json.loads((tmp_path / "map.json").read_text())
    small = config(32, 2, 64)
    torch.manual_seed(0)
    plain = LlamaForCausalLM(small)
    save_file(plain.state_dict(), tmp_path / "model.safetensors")
    expected = losses_of(plain)

    twin = on_meta(small)
    baechi.distribute(twin, batch(64, 8), cluster=emulated, device_map=mapping, optimizer="adam")
    baechi.load(twin, tmp_path / "model.safetensors")
    used = baechi.plan_of(twin).devices_used
    assert used == tuple(f"cpu:{index}" for index in sorted(set(mapping.values())))
    with emulated:
        assert losses_of(twin) == pytest.approx(expected, rel=1e-5)
    assert_same_weights(twin, plain)

    torch.manual_seed(0)
    others = dict.fromkeys(mapping, "cpu")  # accelerate has no emulated devices: the names are what it checks
    dispatched = dispatch_model(LlamaForCausalLM(small), device_map=others, force_hooks=True)
    assert dispatched(**batch(64, 8)).loss.item() == pytest.approx(expected[0], rel=1e-5)
