"""A head of zeros and few rows: the numbers that tell are not the model's own, so they are several."""

import pytest
import torch
from architectures.base import noise, seeded
from torch import Tensor, nn

import baechi
from baechi.errors import BatchCoupled


class Scores(nn.Module):
    """Its head begins with zeros; its loss is the mean of the larger half of errors."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(3, 3), nn.Linear(3, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        errors = (self.head(self.body(x).tanh()) - y).square().flatten()
        return errors.topk(max(1, len(errors) // 2))[0].mean()


@pytest.mark.parametrize(
    ("rows", "dtype", "seed"),
    [*[(4, torch.float32, seed) for seed in (0, 2, 3)], *[(9, torch.bfloat16, seed) for seed in (0, 2, 9)]],
)
def test_the_larger_half_of_few_rows(rows: int, dtype: torch.dtype, seed: int) -> None:
    """All errors are equal until the head is trained. One look agrees by chance in two of three cases."""
    model, x, y = (
        seeded(Scores)().to(dtype),
        noise(rows, 3, seed=seed).to(dtype),
        torch.ones(rows, 1).to(dtype),
    )
    cluster = baechi.Cluster.virtual(2)
    baechi.distribute(
        model, (x, y), cluster=cluster, microbatches=2, device_map={"body": 0, "head": 1, "": 1}
    )
    with pytest.raises(BatchCoupled):
        model(x, y)
