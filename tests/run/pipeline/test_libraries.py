"""Pipelines under the Trainer of transformers, accelerate and data parallel processes: as the plain model."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from run.pipeline.nets import pipelined, seeded
from run.pipeline.test_users_loop import gpt2
from run.two_processes import run_by_two
from torch import nn
from transformers import Trainer, TrainingArguments

pytestmark = pytest.mark.full

IDS = torch.randint(3, 50, (12, 9), generator=torch.Generator().manual_seed(1))
LABELS = IDS.clone()
LABELS[0, 3:] = LABELS[4, 2:] = -100
PLACES = {"transformer": 0, "transformer.h.1": 1, "transformer.h.2": 1, "lm_head": 0}


def both() -> tuple[nn.Module, nn.Module]:
    model = seeded(gpt2)
    plain = copy.deepcopy(model)
    pipelined(model, {"input_ids": IDS[:6], "labels": LABELS[:6]}, device_map=PLACES)
    return model, plain


def assert_same_weights(model: nn.Module, plain: nn.Module) -> None:
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-6)  # GPT-2 computes its loss in single precision


def test_trainer(tmp_path: Path) -> None:
    """Three steps, which scale losses by the number of labels in the batch."""
    data: Any = [{"input_ids": ids, "labels": labels} for ids, labels in zip(IDS, LABELS, strict=True)]
    models = both()
    for number, model in enumerate(models):
        arguments = TrainingArguments(
            str(tmp_path / str(number)),
            per_device_train_batch_size=6,
            max_steps=3,
            learning_rate=1e-2,
            report_to=[],
            use_cpu=True,
            save_strategy="no",
            disable_tqdm=True,
            seed=1,
        )
        Trainer(model, arguments, train_dataset=data).train()
    assert_same_weights(*models)


def test_accelerate() -> None:
    """`prepare` and its `backward`."""
    models = both()
    for model in models:
        accelerator = Accelerator(cpu=True)
        prepared, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
        for _ in range(2):
            optimizer.zero_grad()
            accelerator.backward(prepared(input_ids=IDS[:6], labels=LABELS[:6]).loss)
            optimizer.step()
    assert_same_weights(*models)


def test_data_parallel_processes(tmp_path: Path) -> None:
    """Two processes, each with a pipeline: gradients are averaged once a step."""
    run_by_two(Path(__file__).with_name("ddp_worker.py"), tmp_path / "meeting")
