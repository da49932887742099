"""Where backward begins: at what a model returns as its loss, not at any single number."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import baechi
from baechi.torchlib.losses import losses_among


class Scaled(nn.Module):
    """A learned scale is returned beside features, as contrastive models do."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = nn.Linear(8, 8), nn.Linear(8, 4)
        self.scale = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"features": self.last(self.inner(x).relu()), "scale": self.scale.exp()}


W, V = (torch.ones(3, requires_grad=True) for _ in range(2))
OUTPUTS: dict[str, Any] = {
    "a loss beside what it is computed from": ([h := W * 2, n := h.sum()], [n]),
    "several losses": ({"a": (a := W.sum()), "b": (b := V.sum())}, [a, b]),
    "no number": ((h, k := V * 2), [h, k]),
    "a number of other weights": ({"x": h, "scale": (s := V.sum())}, [h, s]),
    "the same, called loss": ({"x": h, "loss": s}, [s]),
    "the same, first of a tuple": ((s, h), [s]),
    "the same, first of a dict": ({"scale": s, "x": h}, [s, h]),
    "returned twice": ((n, n, h), [n]),
    "returned twice, once as the loss": ({"loss": s, "x": h, "scale": s}, [s]),
    "without a gradient": ((torch.ones(()), h), [h]),
    "integers": ((h.argmax(), h), [h]),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_losses(name: str) -> None:
    outputs, expected = OUTPUTS[name]
    assert [id(loss) for loss in losses_among(outputs)] == [id(loss) for loss in expected]


def test_a_scale_beside_features_does_not_hide_their_backward() -> None:
    graph = baechi.profile(
        Scaled(), torch.ones(2, 8), cluster=baechi.Cluster.virtual(2), training=True, source="estimate"
    )
    for name in ("inner", "last"):
        costs = graph.costs(name)
        assert costs.backward_flops and costs.grad_bytes
