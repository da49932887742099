"""Models of tables, graphs and sets of experts: bags of words, scatter, routes that depend on values."""

from typing import Any

import torch
from architectures.base import noise, token_ids
from torch import Tensor, nn
from torch.nn import functional as F


class DLRM(nn.Module):
    """Clicks from numbers and bags of categories: every pair of features meets; Naumov et al. 2019."""

    def __init__(self, tables: tuple[int, ...] = (20, 30, 10), width: int = 6, dense: int = 4) -> None:
        super().__init__()
        modes = ("sum", "mean", "max")
        self.tables = nn.ModuleList(
            nn.EmbeddingBag(rows, width, mode=mode) for rows, mode in zip(tables, modes, strict=True)
        )
        self.bottom = nn.Sequential(nn.Linear(dense, 8), nn.ReLU(), nn.Linear(8, width), nn.ReLU())
        pairs = (len(tables) + 1) * len(tables) // 2
        self.top = nn.Sequential(nn.Linear(width + pairs, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, dense: Tensor, bags: list[tuple[Tensor, Tensor]]) -> Tensor:
        x = self.bottom(dense)
        features = [
            x,
            *[table(ids, offsets) for table, (ids, offsets) in zip(self.tables, bags, strict=True)],
        ]
        stacked = torch.stack(features, dim=1)
        products = torch.bmm(stacked, stacked.transpose(1, 2))
        rows, columns = torch.tril_indices(len(features), len(features), offset=-1, device=x.device)
        logit: Tensor = self.top(torch.cat([x, products[:, rows, columns]], dim=1))
        return torch.sigmoid(logit).squeeze(1)


class GraphAttentionLayer(nn.Module):
    """Nodes attend to their neighbours: a softmax over the edges that end at each node."""

    def __init__(self, inputs: int, outputs: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.project = nn.Linear(inputs, heads * outputs, bias=False)
        self.from_source, self.from_target = (nn.Parameter(torch.randn(heads, outputs)) for _ in range(2))
        self.bias = nn.Parameter(torch.zeros(heads * outputs))

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        source, target = edges
        h = self.project(x).unflatten(-1, (self.heads, -1))
        scores = (h * self.from_source).sum(-1)[source] + (h * self.from_target).sum(-1)[target]
        scores = F.leaky_relu(scores, 0.2)
        where = target[:, None].expand_as(scores)
        top = torch.full_like(h[..., 0], -torch.inf).scatter_reduce(0, where, scores.detach(), "amax")
        weights = torch.exp(scores - top[target])
        total = torch.zeros_like(top).scatter_add(0, where, weights)
        shares = F.dropout(weights / total[target], 0.1, self.training)
        out = torch.zeros_like(h).index_add_(0, target, h[source] * shares[..., None])
        return out.flatten(1) + self.bias


class GraphAttention(nn.Module):
    """Two layers of attention over edges, one beside them, and a readout by graph; Velickovic et al. 2018."""

    def __init__(self, width: int = 5, hidden: int = 4, heads: int = 2, classes: int = 3) -> None:
        super().__init__()
        self.first = GraphAttentionLayer(width, hidden, heads)
        self.second = GraphAttentionLayer(hidden * heads, hidden, heads)
        self.beside, self.classify = nn.Linear(width, hidden * heads), nn.Linear(hidden * heads, classes)

    def forward(self, x: Tensor, edges: Tensor, graph_of: Tensor) -> tuple[Tensor, Tensor]:
        h = F.elu(self.second(F.elu(self.first(x, edges)), edges) + self.beside(x))
        count = int(graph_of.max()) + 1
        sums = h.new_zeros(count, h.shape[1]).index_add(0, graph_of, h)
        return self.classify(h), sums / torch.bincount(graph_of, minlength=count)[:, None]


class MixtureOfExperts(nn.Module):
    """Each token goes to its two best experts, as far as they have room.

    Shazeer et al. 2017; room as of Lepikhin et al. 2020.
    """

    def __init__(self, width: int = 8, experts: int = 4, chosen: int = 2, room: float = 1.25) -> None:
        super().__init__()
        self.chosen, self.room = chosen, room
        self.gate, self.noise = (nn.Linear(width, experts, bias=False) for _ in range(2))
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
            for _ in range(experts)
        )
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, width)
        self.register_buffer("used", torch.zeros(experts, dtype=torch.long))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        tokens = self.norm(x).flatten(0, 1)
        logits = self.gate(tokens)
        if self.training:
            logits = logits + torch.randn_like(logits) * F.softplus(self.noise(tokens))
        chances = logits.softmax(dim=-1)
        weights, chosen = chances.topk(self.chosen, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        capacity = int(self.room * len(tokens) * self.chosen / len(self.experts))
        out = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            rows, place = torch.where(chosen == number)
            rows, place = rows[:capacity], place[:capacity]
            if rows.numel() == 0:
                continue
            out.index_add_(0, rows, expert(tokens[rows]) * weights[rows, place, None])
            self.used[number] += len(rows)
        load = F.one_hot(chosen[:, 0], len(self.experts)).to(x.dtype).mean(0)
        balance = (load * chances.mean(0)).sum() * len(self.experts)
        return x + self.out(out).view_as(x), balance


def clicks() -> dict[str, Any]:
    offsets = torch.tensor([0, 2, 5, 5])
    sizes = (20, 30, 10)
    return {
        "dense": noise(4, 4),
        "bags": [(token_ids(8, seed=n) % size, offsets) for n, size in enumerate(sizes)],
    }


def molecules() -> dict[str, Any]:
    edges = torch.tensor([[0, 1, 1, 2, 2, 3, 4, 5, 5, 6, 0, 4], [1, 0, 2, 1, 3, 2, 5, 4, 6, 5, 0, 4]])
    loops = torch.arange(7).expand(2, -1)
    graph_of = torch.tensor([0, 0, 0, 0, 1, 1, 1])
    return {"x": noise(7, 5), "edges": torch.cat([edges, loops], dim=1), "graph_of": graph_of}


def tokens() -> dict[str, Any]:
    return {"x": noise(2, 5, 8)}
