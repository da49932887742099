"""A chain that learns to write like the licence: on one emulated device, and as a pipeline over four."""

from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

import baechi

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


def trained(cluster: baechi.Cluster, microbatches: int) -> tuple[float, float, float]:
    """The third step's seconds, the first loss and the last one."""
    torch.manual_seed(0)
    model = Writer()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    text = batches()
    baechi.distribute(model, text[0], cluster=cluster, microbatches=microbatches, optimizer=optimizer)
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
    return seconds[2], losses[0], losses[-1]  # the first two also compare parts with the whole batch


def main() -> None:
    torch.set_num_threads(1)  # kernels are small
    ways = {"one device": (1, 1), "a pipeline over four": (4, 8)}
    for name, (devices, microbatches) in ways.items():
        cluster = baechi.Cluster.virtual(devices, memory="4GiB", like="CPU")
        seconds, first, last = trained(cluster, microbatches)
        print(f"{name}: {seconds * 1e3:.0f} ms a step, loss {first:.3f}, then {last:.3f}")


if __name__ == "__main__":
    main()
