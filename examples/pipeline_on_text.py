"""A chain that learns to write like the licence: on one emulated device, and as a pipeline over four.

The pipeline runs as its code is written, and as compiled stages: a program for each part of the plan. The
picture of the pipeline is pipeline_on_text.svg.
"""

from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

import baechi
from baechi import report

LETTERS, LENGTH, WIDTH, STEPS = 128, 64, 128, 5


class Block(nn.Module):
    """Attention to what came before, then two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.three, self.joined = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.three(self.before(x)).chunk(3, -1)
        x = x + self.joined(F.scaled_dot_product_attention(query, key, value, is_causal=True))
        return x + self.down(F.gelu(self.up(self.between(x))))


class Writer(nn.Module):
    """Predicts the next letter; returns the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(LETTERS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*[Block() for _ in range(4)])
        self.head = nn.Linear(WIDTH, LETTERS)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        x = self.blocks(self.letters(text[:, :-1]) + self.places.weight)
        return F.cross_entropy(self.head(x).flatten(0, 1), text[:, 1:].flatten())


def batches() -> list[torch.Tensor]:
    """32 stretches of the project's licence for each step."""
    text = (Path(__file__).parents[1] / "LICENSE").read_bytes()
    letters = torch.tensor(list(text[: 32 * STEPS * (LENGTH + 1)])).reshape(STEPS, 32, LENGTH + 1)
    return list(letters.unbind())


def trained(cluster: baechi.Cluster, microbatches: int, compiled: bool) -> tuple[nn.Module, str]:
    """The model, and the third step's seconds, the first loss and the last one in words."""
    torch.manual_seed(0)
    model = Writer()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    text = batches()
    way = {"compile": "stages"} if compiled else {}
    baechi.distribute(model, text[0], cluster=cluster, microbatches=microbatches, optimizer=optimizer, **way)
    losses, seconds = [], []
    with cluster:
        for batch in text:
            begun = cluster.emulation.now_s
            optimizer.zero_grad()
            loss = model(batch)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())  # waits for the devices
            seconds.append(cluster.emulation.now_s - begun)
    # the first two steps also compare parts with the whole batch
    return model, f"{seconds[2] * 1e3:.0f} ms a step, loss {losses[0]:.3f}, then {losses[-1]:.3f}"


def main() -> None:
    torch.set_num_threads(1)  # kernels are small
    ways = {
        "one device": (1, 1, False),
        "a pipeline over four": (4, 8, False),
        "the same, compiled": (4, 8, True),
    }
    for name, (devices, microbatches, compiled) in ways.items():
        cluster = baechi.Cluster.virtual(devices, memory="4GiB", like="CPU")
        model, said = trained(cluster, microbatches, compiled)
        print(f"{name}: {said}")
    picture = report.to_svg(baechi.plan_of(model))
    Path(__file__).with_suffix(".svg").write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main()
