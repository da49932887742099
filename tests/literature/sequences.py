"""Models of sequences and trees: dilated, with a memory, recursive, of as many steps as the input needs."""

from typing import Any

import torch
from architectures.base import VOCABULARY, noise, token_ids
from torch import Tensor, nn
from torch.nn import functional as F


class GatedBlock(nn.Module):
    """A dilated causal convolution behind a gate; it hands on a residual and a skip."""

    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        self.dilation = dilation
        self.filter, self.gate = (nn.Conv1d(channels, channels, 2, dilation=dilation) for _ in range(2))
        self.residual, self.skip = (nn.Conv1d(channels, channels, 1) for _ in range(2))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        past = F.pad(x, (self.dilation, 0))
        gated = torch.tanh(self.filter(past)) * torch.sigmoid(self.gate(past))
        return x + self.residual(gated), self.skip(gated)


class WaveNet(nn.Module):
    """Stacks of dilated gated convolutions whose skips are summed in place; van den Oord et al. 2016."""

    def __init__(
        self, levels: int = 16, channels: int = 6, dilations: tuple[int, ...] = (1, 2, 4, 1, 2)
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(levels, channels)
        self.blocks = nn.ModuleList(GatedBlock(channels, dilation) for dilation in dilations)
        self.last = nn.Sequential(
            nn.ReLU(), nn.Conv1d(channels, channels, 1), nn.ReLU(inplace=True), nn.Conv1d(channels, levels, 1)
        )

    def forward(self, samples: Tensor) -> Tensor:
        x = self.embed(samples).transpose(1, 2)
        total = torch.zeros_like(x)
        for block in self.blocks:
            x, skip = block(x)
            total += skip
        logits: Tensor = self.last(total)
        return F.cross_entropy(logits[..., :-1], samples[:, 1:], reduction="none")


class TuringMachine(nn.Module):
    """A controller that reads and writes a memory by content and by place; Graves et al. 2014."""

    def __init__(self, width: int = 4, hidden: int = 8, cells: int = 6, size: int = 5) -> None:
        super().__init__()
        self.controller = nn.LSTMCell(width + size, hidden)
        self.read_head, self.write_head = (nn.Linear(hidden, size + 6) for _ in range(2))
        self.erase, self.add = nn.Linear(hidden, size), nn.Linear(hidden, size)
        self.out = nn.Linear(hidden + size, width)
        self.register_buffer("blank", torch.full((cells, size), 0.1))
        self.first_read = nn.Parameter(torch.randn(size) * 0.1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        rows = x.shape[1]
        memory = self.blank.expand(rows, -1, -1)
        read = self.first_read.expand(rows, -1)
        focus = [
            F.one_hot(torch.zeros(rows, dtype=torch.long, device=x.device), memory.shape[1]).to(x.dtype)
        ] * 2
        state, outputs = None, []
        for step in x:
            state = self.controller(torch.cat([step, read], dim=-1), state)
            hidden = state[0]
            focus = [
                self.address(head(hidden), memory, before)
                for head, before in zip((self.read_head, self.write_head), focus, strict=True)
            ]
            read = torch.einsum("bn,bnm->bm", focus[0], memory)
            erased = torch.einsum("bn,bm->bnm", focus[1], torch.sigmoid(self.erase(hidden)))
            memory = memory * (1 - erased) + torch.einsum("bn,bm->bnm", focus[1], self.add(hidden))
            outputs.append(self.out(torch.cat([hidden, read], dim=-1)))
        return torch.stack(outputs), memory

    @staticmethod
    def address(wish: Tensor, memory: Tensor, before: Tensor) -> Tensor:
        """Where a head looks: by content, mixed with where it was, shifted, sharpened."""
        key, (strength, gate, *shifts, sharpness) = wish[:, :-6], wish[:, -6:].split(1, dim=-1)
        alike = F.cosine_similarity(memory, key[:, None], dim=-1)
        found = torch.softmax(F.softplus(strength) * alike, dim=-1)
        mixed = torch.lerp(before, found, torch.sigmoid(gate))
        left, stay, right = torch.softmax(torch.cat(shifts, dim=-1), dim=-1).unbind(-1)
        moved = mixed.roll(-1, 1) * left[:, None] + mixed * stay[:, None] + mixed.roll(1, 1) * right[:, None]
        sharp = (moved + 1e-6) ** (1 + F.softplus(sharpness))
        return sharp / sharp.sum(-1, keepdim=True)


Tree = tuple["Tree", "Tree"] | int
"""A word, or two trees."""


class TreeLSTM(nn.Module):
    """A sentence is the tree of its phrases; Tai, Socher and Manning 2015."""

    def __init__(self, width: int = 6, classes: int = 5) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, width)
        self.leaf, self.leaf_gate = nn.Linear(width, width), nn.Linear(width, width)
        self.gates = nn.Linear(2 * width, 5 * width)
        self.classify = nn.Sequential(nn.Dropout(0.2), nn.Linear(width, classes))

    def forward(self, trees: list[Tree]) -> list[dict[str, Tensor]]:
        results = []
        for tree in trees:
            phrases: list[Tensor] = []
            root, _ = self.compose(tree, phrases)
            results.append({"root": self.classify(root), "phrases": self.classify(torch.stack(phrases))})
        return results

    def compose(self, tree: Tree, phrases: list[Tensor]) -> tuple[Tensor, Tensor]:
        if isinstance(tree, int):
            word = self.words(torch.tensor(tree, device=self.words.weight.device))
            cell = self.leaf(word)
            hidden = torch.sigmoid(self.leaf_gate(word)) * torch.tanh(cell)
        else:
            (left, left_cell), (right, right_cell) = (self.compose(part, phrases) for part in tree)
            new, write, out, keep_left, keep_right = self.gates(torch.cat([left, right])).chunk(5)
            cell = torch.sigmoid(write) * torch.tanh(new)
            cell = cell + torch.sigmoid(keep_left) * left_cell + torch.sigmoid(keep_right) * right_cell
            hidden = torch.sigmoid(out) * torch.tanh(cell)
        phrases.append(hidden)
        return hidden, cell


class AdaptiveSteps(nn.Module):
    """A recurrent cell that ponders each item until it is sure enough; Graves 2016."""

    def __init__(self, width: int = 4, hidden: int = 6, limit: int = 5, enough: float = 0.9) -> None:
        super().__init__()
        self.limit, self.enough, self.hidden = limit, enough, hidden
        self.cell, self.halt, self.out = (
            nn.GRUCell(width + 1, hidden),
            nn.Linear(hidden, 1),
            nn.Linear(hidden, 2),
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        state, outputs, pondered = x.new_zeros(x.shape[1], self.hidden), [], x.new_zeros(x.shape[1])
        for item in x:
            state, spent = self.ponder(item, state)
            pondered = pondered + spent
            outputs.append(self.out(state))
        return torch.stack(outputs), pondered

    def ponder(self, item: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        sure, spent = item.new_zeros(len(item)), item.new_zeros(len(item))
        mixed = torch.zeros_like(state)
        for step in range(self.limit):
            flag = torch.full_like(sure, float(step == 0))[:, None]
            state = self.cell(torch.cat([item, flag], dim=-1), state)
            chance = torch.sigmoid(self.halt(state)).squeeze(-1)
            going = sure < self.enough
            last = going & ((sure + chance >= self.enough) | (step == self.limit - 1))
            weight = torch.where(last, 1 - sure, chance) * going
            mixed = mixed + weight[:, None] * state
            sure, spent = sure + weight, spent + going + torch.where(last, 1 - sure, 0)
            if not (sure < self.enough).any():
                break
        return mixed, spent


def samples() -> dict[str, Any]:
    return {"samples": token_ids(2, 12) % 16}


def series() -> dict[str, Any]:
    return {"x": noise(4, 3, 4)}


def trees() -> dict[str, Any]:
    return {"trees": [((3, 17), (5, (8, 11))), (4, 9), ((2, (7, 7)), 30)]}
