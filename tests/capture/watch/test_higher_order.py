"""Operators that are given functions are refused, and say so, even where the model's code catches that."""

import pytest
import torch
from architectures.base import noise
from torch import Tensor, nn
from torch.nn.attention.flex_attention import flex_attention

import baechi


class Attention(nn.Module):
    """Attention that may fall back to none at all."""

    def __init__(self, catches: bool) -> None:
        super().__init__()
        self.catches = catches
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x)[:, None].chunk(3, -1)
        try:
            mixed = flex_attention(q, k, v)
        except Exception:
            if not self.catches:
                raise
            mixed = v
        assert isinstance(mixed, Tensor)
        out: Tensor = self.out(mixed[:, 0])
        return out


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("catches", [True, False])
def test_flex_attention_is_refused(catches: bool) -> None:
    model = Attention(catches)
    cluster = baechi.Cluster.virtual(2)
    with torch.no_grad(), pytest.raises(baechi.CaptureError, match=r"flex_attention.*Choose"):
        baechi.distribute(model, noise(2, 128, 16), cluster=cluster, training=False)
