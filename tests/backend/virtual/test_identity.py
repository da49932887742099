"""Tensors that the code makes of numbers."""

import pytest
import torch
from architectures.base import noise
from run.checks import check
from torch import Tensor, nn


class WrittenDown(nn.Module):
    """Rows chosen, inside a layer, by numbers that stand in the code."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8))

    def forward(self, x: Tensor) -> Tensor:
        chosen = x.index_fill(1, torch.tensor([2, 5]), 0.5)
        return chosen.index_select(0, torch.as_tensor([3, 1])) * self.weight


@pytest.mark.parametrize("devices", [1, 2])
def test_tensors_that_stand_in_the_code_belong_nowhere_yet(devices: int) -> None:
    """`torch.tensor([2])` goes with its first user on an emulated cluster, as `torch.full` does.

    It lay on the host, for good: a model with such a line ran where glue brought the tensor, and
    raised inside layers and on one device.
    """
    device_map = {"0": 0, "1": devices - 1}
    check(
        lambda: nn.Sequential(nn.Linear(8, 8), WrittenDown()),
        lambda: {"input": noise(4, 8)},
        device_map,
        True,
    )
