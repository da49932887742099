"""What a waiting layer made is sent once, to who reads it."""

from typing import Any

import pytest
import torch
from order.interleaved import distribute
from run.launch.equal_layers import Net, X
from run.launched import LAUNCHERS
from torch import Tensor

import baechi


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("reorder", LAUNCHERS)
def test_outputs_travel_once_in_inference(reorder: str, mode: Any) -> None:
    """What a waiting layer made is sent ahead under the modes of the code, so its reader finds it."""

    def code(self: Any, x: Tensor) -> Tensor:
        with mode():
            h = self.c(self.a(x))
        result: Tensor = h + self.d(self.b(x))
        return result

    counts = []
    for way in (False, reorder):
        model = Net(code)
        with distribute(model, X, {"a": 0, "b": 0, "c": 1, "d": 1}, "badc", reorder=way):
            model(**X)
            counts.append(baechi.last_step(model).counters["transfers"])
    assert counts[0] == counts[1]
