"""`generate()` of models in microbatches, of models with split layers, and of both: as the plain model's."""

import copy
from typing import Any

import pytest
import torch
from run.pipeline.by_loop import assert_same_gradients
from run.pipeline.nets import noise
from torch import Tensor

import baechi
from baechi.torchlib.shards.weight import ShardedWeight

transformers = pytest.importorskip("transformers")

TOKENS = {"vocab_size": 41, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def llama() -> Any:
    config = transformers.LlamaConfig(
        **TOKENS, hidden_size=8, intermediate_size=12, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=32,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def t5() -> Any:
    config = transformers.T5Config(
        **TOKENS, d_model=8, d_kv=4, d_ff=12, num_layers=1, num_heads=2, decoder_start_token_id=0,
        dropout_rate=0.0,
    )  # fmt: skip
    return transformers.T5ForConditionalGeneration(config)


def whisper() -> Any:
    config = transformers.WhisperConfig(
        **TOKENS, num_mel_bins=4, d_model=8, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=12, decoder_ffn_dim=12, max_source_positions=6,
        max_target_positions=24, decoder_start_token_id=3, suppress_tokens=None, begin_suppress_tokens=None,
    )  # fmt: skip
    return transformers.WhisperForConditionalGeneration(config)


def words(rows: int, length: int = 5) -> Tensor:
    return torch.randint(3, 41, (rows, length), generator=torch.Generator().manual_seed(rows))


MODELS = {
    "llama": (llama, lambda rows: {"input_ids": words(rows)}, "lm_head"),
    "t5": (t5, lambda rows: {"input_ids": words(rows)}, "encoder.embed_tokens"),
    "whisper": (whisper, lambda rows: {"input_features": noise(rows, 4, 12)}, "proj_out"),
}

HOWS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "beams": {"num_beams": 3},
    "static cache": {"cache_implementation": "static"},
    "beams, static cache": {"num_beams": 2, "cache_implementation": "static"},
    "sampled twice": {"do_sample": True, "num_return_sequences": 2},
    "no cache": {"use_cache": False},
}


@pytest.mark.default_cases(1)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("way", ["pipelined", "split", "both"])
def test_generate(name: str, way: str) -> None:
    """Of two prompts and of as many as there are microbatches, between two steps of training."""
    build, given, head = MODELS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = build().double()
    plain = copy.deepcopy(model)
    options: dict[str, Any] = {} if way == "split" else {"microbatches": 4, "order": "1f1b"}
    options |= {} if way == "pipelined" else {"split": {head: 2}}
    batch = {**given(4), "labels": words(4)}
    cluster = baechi.Cluster.virtual(2)
    baechi.distribute(model.train(), batch, cluster=cluster, placer="even", **options)
    with cluster:
        model(**batch).loss.backward()
    for how, more in HOWS.items():
        for rows in (2, 4) if how in ("greedy", "beams") else (2,):
            made = []
            for network in (model.eval(), plain.eval()):
                torch.manual_seed(0)
                made.append(network.generate(**given(rows), max_new_tokens=4, **more).tolist())
            assert made[0] == made[1], (how, rows)
    last = {**given(3), "labels": words(3)}
    for network in (model.train(), plain.train()):
        network.zero_grad()
        network(**last).loss.backward()
    if way == "pipelined":
        assert_same_gradients(model, plain)
    for (key, mine), other in zip(model.named_parameters(), plain.parameters(), strict=True):
        if isinstance(mine, ShardedWeight):
            torch.testing.assert_close(mine.grad.cpu(), other.grad, msg=key)
