"""Five AdamW steps of tiny language models: lengths vary, and labels are ignored from the third step on."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import baechi
from baechi.run.binding import binding_of

transformers = pytest.importorskip("transformers")

SMALL = {"vocab_size": 60, "use_cache": False, "bos_token_id": None, "eos_token_id": None}
LENGTHS = (9, 12, 7, 12, 10)


def gpt2() -> nn.Module:
    drops = dict.fromkeys(["resid_pdrop", "embd_pdrop", "attn_pdrop"], 0)
    made = transformers.GPT2Config(n_positions=32, n_embd=16, n_layer=2, n_head=2, **SMALL, **drops)
    return transformers.GPT2LMHeadModel(made)


def t5() -> nn.Module:
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2, "dropout_rate": 0.0}
    return transformers.T5ForConditionalGeneration(
        transformers.T5Config(decoder_start_token_id=0, **SMALL, **sizes)
    )


def bert() -> nn.Module:
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    drops = dict.fromkeys(["hidden_dropout_prob", "attention_probs_dropout_prob"], 0)
    return transformers.BertForMaskedLM(transformers.BertConfig(**SMALL, **sizes, **drops))


def llama() -> nn.Module:
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(num_key_value_heads=2, **SMALL, **sizes))


def batch(step: int) -> dict[str, Tensor]:
    """Eight rows; from the third batch on they are padded, and their padding has no labels."""
    chance, length = torch.Generator().manual_seed(step), LENGTHS[step]
    ids = torch.randint(1, 60, (8, length), generator=chance)
    there = torch.arange(length) < torch.randint(3, length + 1, (8, 1), generator=chance)
    there = there if step >= 2 else torch.ones_like(there)
    return {
        "input_ids": ids,
        "attention_mask": there.long(),
        "labels": ids.masked_fill(~there, -100),
    }


@pytest.mark.full
@pytest.mark.parametrize("build", [gpt2, t5, bert, llama])
def test_weights_after_five_steps(build: Callable[[], nn.Module], caplog: pytest.LogCaptureFixture) -> None:
    """They are the whole batch's; it was judged at calls 1, 2, 4, and when labels were ignored first."""
    torch.manual_seed(0)
    model = build().double().train()
    plain = copy.deepcopy(model)
    cluster = baechi.Cluster.virtual(2)
    baechi.distribute(model, batch(0), cluster=cluster, microbatches=4, placer="even")
    one, other = (torch.optim.AdamW(network.parameters(), 1e-2) for network in (model, plain))
    for step in range(len(LENGTHS)):
        one.zero_grad()
        other.zero_grad()
        with cluster:
            model(**batch(step)).loss.backward()
            one.step()
        plain(**batch(step)).loss.backward()
        other.step()
    for mine, whole in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.cpu(), whole, rtol=0, atol=1e-9)
    binding = binding_of(model)
    assert binding is not None and binding.runtime.microbatches.judge.judgements == 4
    assert "baechi.run.pipeline" not in {record.name for record in caplog.records}
