"""Torch's stack of encoder layers: without gradients it packs padded sentences, and takes its own path."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import baechi


class Encodes(nn.Module):
    """A stack, and the loss inside."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.stack, self.head = nn.TransformerEncoder(layer, 3), nn.Linear(16, 4)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        made: Tensor = self.head(self.stack(x, src_key_padding_mask=padding))
        return made.square().mean()


@pytest.mark.parametrize(
    "more", [{}, {"microbatches": 4, "loss_weights": "rows"}], ids=["whole", "microbatches"]
)
def test_a_model_that_trains_is_evaluated(more: dict[str, Any]) -> None:
    """No layer seems to read what it was not given, which would keep torch from its own path."""
    torch.manual_seed(0)
    model = Encodes()
    plain, x = copy.deepcopy(model), torch.randn(8, 6, 16)
    padding = torch.arange(6).expand(8, 6) >= torch.tensor([[4], [3]] * 4)
    cluster = baechi.Cluster.virtual(2)
    baechi.distribute(model, (x, padding), cluster=cluster, placer="round-robin", source="estimate", **more)
    assert not any(costs.reaches for _, costs in baechi.plan_of(model).graph.placed_costs())
    with cluster:
        model(x, padding).backward()
    plain(x, padding).backward()
    assert torch.allclose(model.head.weight.grad.cpu(), plain.head.weight.grad, rtol=1e-5)
    with cluster, torch.no_grad():
        evaluated = model.eval()(x, padding)
    with torch.no_grad():
        assert torch.allclose(evaluated, plain.eval()(x, padding), rtol=1e-5)


class Attending(nn.Module):
    """Attention without weights, between layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.query, self.last, self.beside = (nn.Linear(16, 16) for _ in range(4))
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        query = self.query(x)
        attended: Tensor = self.attention(query, query, query, need_weights=False)[0]
        return self.last(query + attended) + self.beside(x)


@pytest.mark.parametrize("seed", [0, 4, 7])
def test_attention_without_weights_waits(seed: int) -> None:
    """In evaluation its fast way returns one tensor, where shape functions say two."""
    model, x = Attending().eval(), torch.rand(2, 5, 16)
    cluster = baechi.Cluster.virtual(2)
    graph = baechi.profile(model, x, cluster=cluster, training=False, source="estimate")
    plan = baechi.place(graph, cluster, f"random:{seed}")
    with torch.no_grad():
        expected = model(x)
        with cluster:
            assert torch.equal(baechi.assign(model, plan)(x), expected)
