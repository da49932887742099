"""A story: GPT-2 in microbatches, with all that a training script does around it."""

import pytest
import torch
from stories.weights import assert_same_weights
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import LinearLR
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel

import baechi

pytestmark = pytest.mark.full

ROWS, LENGTH, MICROBATCHES = 8, 64, 4


def build() -> nn.Module:
    """Four blocks, no dropout: draws are by microbatch, and would be others."""
    torch.manual_seed(0)
    sizes = dict(n_layer=4, n_embd=128, n_head=4, n_positions=LENGTH, vocab_size=64)
    return GPT2LMHeadModel(GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, **sizes))


def texts(seed: int, rows: int) -> DataLoader[Tensor]:
    """Batches of eight; the last one has five, which are not fewer than microbatches."""
    ids = torch.randint(64, (rows, LENGTH), generator=torch.Generator().manual_seed(seed))
    return DataLoader(ids, batch_size=ROWS)


def train(model: nn.Module, dtype: torch.dtype | None) -> tuple[list[float], list[float]]:
    """Losses of training, and of the evaluation after each of two epochs."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = LinearLR(optimizer, start_factor=0.25, total_iters=4)
    losses, evaluated = [], []
    for _ in range(2):
        model.train()
        optimizer.zero_grad()
        for number, ids in enumerate(texts(1, 29), 1):  # eight, eight, eight and five rows
            with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
                loss = model(input_ids=ids, labels=ids).loss
            (loss / 2).backward()
            losses.append(loss.item())
            if number % 2 == 0:
                clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            evaluated.append(sum(model(input_ids=ids, labels=ids).loss.item() for ids in texts(2, 13)))
    return losses, evaluated


@pytest.mark.parametrize(
    "dtype, tolerance", [(None, 2e-5), (torch.bfloat16, 1e-2)], ids=["float32", "autocast"]
)
def test_gpt2_in_microbatches(dtype: torch.dtype | None, tolerance: float) -> None:
    """Losses, evaluations and weights are those of the plain loop."""
    plain = build()
    expected = train(plain, dtype)

    model = build()
    (ids, *_) = texts(1, ROWS)
    cluster = baechi.Cluster.virtual(4, memory="1GiB", like="CPU")  # slow enough for a small model to gain
    with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
        baechi.distribute(
            model,
            {"input_ids": ids, "labels": ids},
            cluster=cluster,
            microbatches=MICROBATCHES,
            optimizer="adamw",
            accumulate=True,
        )
    with cluster:
        found = train(model, dtype)
    assert len(baechi.plan_of(model).devices_used) > 1
    for losses, wanted in zip(found, expected, strict=True):
        assert losses == pytest.approx(wanted, rel=tolerance)
    assert_same_weights(model, plain, tolerance)
