"""A story: the Trainer of transformers, begun on two devices and resumed on three others."""

from pathlib import Path
from typing import Any

import pytest
import torch
from stories.weights import assert_same_weights
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import baechi

pytestmark = pytest.mark.full

STEPS, SAVED_AT = 4, 2


def build() -> nn.Module:
    """A small language model that checkpoints its blocks."""
    torch.manual_seed(0)
    sizes = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=4, num_attention_heads=4)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=64, pad_token_id=0, **sizes))
    model.gradient_checkpointing_enable()
    return model


def rows(seed: int) -> list[dict[str, torch.Tensor]]:
    ids = torch.randint(64, (16, 8), generator=torch.Generator().manual_seed(seed))
    return [{"input_ids": row, "labels": row} for row in ids]


def trainer_of(model: nn.Module, folder: Path) -> Trainer:
    """Two batches a step; the losses of each step, an evaluation and a checkpoint at every second one."""
    arguments = TrainingArguments(
        str(folder),
        max_steps=STEPS,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        eval_strategy="steps",
        eval_steps=SAVED_AT,
        save_steps=SAVED_AT,
        logging_steps=1,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    return Trainer(model, arguments, train_dataset=rows(1), eval_dataset=rows(2))


def spread(model: nn.Module, cluster: baechi.Cluster) -> nn.Module:
    ids = torch.stack([row["input_ids"] for row in rows(1)[:2]])
    batch = {"input_ids": ids, "labels": ids}
    return baechi.distribute(model, batch, cluster=cluster, placer="even", optimizer="adam", accumulate=True)


def numbers(history: list[dict[str, float]], name: str) -> dict[int, float]:
    """What was logged under a name, by step."""
    return {int(entry["step"]): entry[name] for entry in history if name in entry}


def test_trainer_resumes_on_other_devices(tmp_path: Path) -> None:
    """Losses, evaluations and weights are those of the plain model, which nothing interrupted."""
    plain = build()
    alone = trainer_of(plain, tmp_path / "plain")
    alone.train()

    begun: Any = spread(build(), baechi.Cluster.virtual(2, memory="1GiB"))
    assert len(set(begun.hf_device_map.values())) == 2
    trainer_of(begun, tmp_path / "placed").train()
    assert_same_weights(begun, plain)

    resumed: Any = spread(build(), baechi.Cluster.virtual(like=["A100-40GB", "L4", "RTX-3090"]))
    assert len(set(resumed.hf_device_map.values())) == 3
    trainer = trainer_of(resumed, tmp_path / "resumed")
    trainer.train(resume_from_checkpoint=str(tmp_path / "placed" / f"checkpoint-{SAVED_AT}"))
    assert_same_weights(resumed, plain)

    for name in ("loss", "eval_loss"):
        expected, found = numbers(alone.state.log_history, name), numbers(trainer.state.log_history, name)
        assert found == pytest.approx(expected, rel=1e-5)
