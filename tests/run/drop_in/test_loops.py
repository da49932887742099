"""Loops that others wrote: the Trainer and `generate()` of transformers, Lightning's, compiled parts, DDP."""

from pathlib import Path
from typing import Any

import pytest
import torch
from architectures import HELD_IN
from architectures.base import seeded, token_ids
from run.every_way import TURNS, WAYS, Rig, Way, batch, every_way, rig, same
from run.two_processes import run_by_two
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

from baechi.errors import BaechiError

T5 = next(architecture for architecture in HELD_IN if architecture.name == "t5")
GPT2 = next(architecture for architecture in HELD_IN if architecture.name == "gpt2")
HOW: tuple[dict[str, Any], ...] = ({}, {"num_beams": 2}, {"do_sample": True})
"""Ways to choose the next word."""


def in_double() -> nn.Module:
    """A model some of whose tensors have many uses: sums of gradients may be taken in another order."""
    return T5.build().double()


class Sentences(Dataset[dict[str, Tensor]]):
    """Sentences that are their own labels."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        ids = token_ids(12, seed=index)
        return {"input_ids": ids, "labels": ids}


@pytest.mark.full
@pytest.mark.parametrize("recompute", [False, True], ids=["plain", "checkpointed"])
@every_way
def test_trainer(way: Way, recompute: bool, tmp_path: Path) -> None:
    """Two steps of the Trainer, an evaluation, and its own files."""

    def run(model: Any) -> Any:
        arguments = TrainingArguments(
            str(tmp_path),
            max_steps=2,
            per_device_train_batch_size=2,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            logging_steps=1,
            activation_checkpointing=recompute,
        )
        trainer = Trainer(model, arguments, train_dataset=Sentences(), eval_dataset=Sentences())
        trainer.train()
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        evaluated = trainer.evaluate()["eval_loss"]
        trainer.save_model()
        return losses, evaluated, (tmp_path / "model.safetensors").stat().st_size

    model = same(way, run, build=in_double, inputs=T5.inputs, tolerance=1e-9)
    assert len(set(model.hf_device_map.values())) == 3


@pytest.mark.default_cases(1)
@pytest.mark.parametrize("how", HOW, ids=["greedy", "beams", "sampling"])
@every_way
def test_generate(way: Way, how: dict[str, Any]) -> None:
    """`generate()` with a cache, of an encoder with a decoder."""

    def run(model: Any) -> Any:
        given = token_ids(2, 7)
        made = model.generate(given, max_new_tokens=4, min_new_tokens=4, use_cache=True, **how)
        return made, model.generate(given[:1], max_new_tokens=3, use_cache=False)

    same(way, run, build=T5.build, inputs=T5.inputs, training=False, waits=False)


@every_way
def test_generate_by_hand(way: Way) -> None:
    """A decoder called token by token, with the cache that it returned, and then trained."""

    def run(model: Any) -> Any:
        given, cache, logits = token_ids(2, 5), None, []
        with torch.no_grad():
            for _ in range(3):
                out = model(given, past_key_values=cache, use_cache=True)
                cache, given = out.past_key_values, out.logits[:, -1:].argmax(-1)
                logits.append(out.logits)
        return logits

    same(way, run, build=GPT2.build, inputs=GPT2.inputs, training=False, waits=False)


class Module(Rig):
    """What a LightningModule is: it knows its loss and its optimizers, and calls itself or its parts."""

    def __init__(self) -> None:
        super().__init__()
        self.logged: dict[str, list[Tensor]] = {}

    def log(self, name: str, value: Tensor) -> None:
        self.logged.setdefault(name, []).append(value.detach())

    def training_step(self, x: Tensor, index: int) -> Tensor:
        loss = F.mse_loss(self(x), torch.ones(len(x), 3))
        self.log("train", loss)
        return loss

    def validation_step(self, x: Tensor, index: int) -> None:
        hidden = self.mix(self.first(self.enter(x[:, :3]))) + self.side(x[:, 3:])
        self.log("valid", self.head(self.second(hidden)).pow(2).mean())

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1)}


@pytest.mark.default_cases(1)
@every_way
def test_loop_of_lightning(way: Way) -> None:
    """Training and validation steps that are methods of the model, with its optimizer and schedule."""

    def run(model: Any) -> Any:
        configured = model.configure_optimizers()
        optimizer, schedule = configured["optimizer"], configured["lr_scheduler"]
        for epoch in range(2):
            model.train()
            for index in range(2):

                def closure(index: int = index) -> Tensor:
                    optimizer.zero_grad()
                    loss: Tensor = model.training_step(batch(seed=index), index)
                    loss.backward()
                    return loss

                optimizer.step(closure)
            schedule.step()
            model.eval()
            with torch.no_grad():
                model.validation_step(batch(seed=epoch + 7), 0)
        return model.logged

    same(way, run, build=seeded(Module), waits=False)


@pytest.mark.full
def test_data_parallel_processes(tmp_path: Path) -> None:
    """DDP around the model in two processes, on batches of their own, by each launcher; outside of `with`."""
    for printed in run_by_two(Path(__file__).with_name("ddp_worker.py"), tmp_path / "meeting", timeout_s=120):
        assert all(f"the same {way}" in printed for way in TURNS[0])
        assert "outside of `with cluster:`" in printed


def test_data_parallel_inside_is_refused() -> None:
    """Emulated devices cannot be told apart by DDP, which says so before anything is wrapped."""
    model, cluster = WAYS[0].distribute(rig, batch)
    with cluster, pytest.raises(BaechiError, match="outside of `with cluster:`"):
        DistributedDataParallel(model)
