"""Two towers on two devices: two lines make the model a distributed one.

Run it anywhere: the devices are emulated, each as slow as a CPU, so that a small batch shows the gain. With
accelerators, leave `cluster` out. The picture of the plan is two_towers.svg.
"""

from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

import baechi
from baechi import report

ROWS, WORDS, SHARED, STEPS = 32, 1000, 64, 5


class Tower(nn.Module):
    """Turns a row of vectors into one code of length 1."""

    def __init__(self, first: nn.Module, width: int) -> None:
        super().__init__()
        self.first = first
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
            )
            for _ in range(4)
        )
        self.code = nn.Linear(width, SHARED)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x)
        return F.normalize(self.code(x.mean(1)), dim=-1)


class TwoTowers(nn.Module):
    """Images and texts into one space: how well each pair goes together."""

    def __init__(self) -> None:
        super().__init__()
        channels = nn.Sequential(nn.Conv2d(3, 128, 8, 8), nn.Flatten(2))  # each a vector of 8 x 8 places
        self.image = Tower(channels, 64)
        self.text = Tower(nn.Embedding(WORDS, 96), 96)

    def forward(self, image: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        return self.image(image) @ self.text(text).t()


def main() -> None:
    torch.manual_seed(0)
    batch = {"image": torch.randn(ROWS, 3, 64, 64), "text": torch.randint(WORDS, (ROWS, 64))}
    model = TwoTowers()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    cluster = baechi.Cluster.virtual(2, memory="1GiB", like="CPU")
    model = baechi.distribute(model, batch, cluster=cluster, optimizer=optimizer)

    with cluster:
        for step in range(STEPS):
            optimizer.zero_grad()
            loss = F.cross_entropy(8 * model(**batch), torch.arange(ROWS))
            loss.backward()
            optimizer.step()
            print(f"step {step + 1}: loss {loss.item():.4f}")
    plan = baechi.plan_of(model)
    for module, device in plan.to_device_map().items():
        print(f"{module}: {device}")
    print(report.to_text(plan, width=100).partition("\n\n")[0])
    Path(__file__).with_suffix(".svg").write_text(report.to_svg(plan), encoding="utf-8")


if __name__ == "__main__":
    main()
