"""One model over two processes: `torchrun --nproc-per-node 2 examples/two_processes.py`.

On several hosts torchrun is started on each, with `--nnodes 2 --rdzv-backend c10d --rdzv-endpoint HOST:PORT`.
The picture of the plan is two_processes.svg. Without torchrun it runs in one process, and prints the same
losses.
"""

import os
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

import baechi
from baechi import report

WIDTH, CLASSES, STEPS = 256, 10, 3


class Block(nn.Module):
    """Two layers, with a dropout, and their input added."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.drop = (
            nn.Linear(WIDTH, 4 * WIDTH),
            nn.Linear(4 * WIDTH, WIDTH),
            nn.Dropout(0.1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.drop(self.down(F.gelu(self.up(x))))


class Classifier(nn.Module):
    """A chain of blocks that returns its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.head = nn.Sequential(*[Block() for _ in range(8)]), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.head(self.blocks(x)), label)


def main() -> None:
    speaks = os.environ.get("RANK", "0") == "0"
    torch.manual_seed(0)  # every process builds the same model, and loads the same batches
    model = Classifier()
    data = [(torch.randn(512, WIDTH), torch.randint(CLASSES, (512,))) for _ in range(STEPS)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    model = baechi.distribute(model, data[0], microbatches=4, optimizer=optimizer)

    for step, (x, label) in enumerate(data):
        optimizer.zero_grad()
        loss = model(x, label)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if speaks:
            print(f"step {step + 1}: loss {loss.item():.4f}, norm {norm.item():.4f}")
    if speaks and "RANK" in os.environ:
        for device, layers in by_device(baechi.plan_of(model).to_device_map()).items():
            print(f"{device}: {', '.join(layers)}")
        picture = report.to_svg(baechi.plan_of(model))
        Path(__file__).with_suffix(".svg").write_text(picture, encoding="utf-8")


def by_device(places: dict[str, str]) -> dict[str, list[str]]:
    """The layers of each device."""
    found: dict[str, list[str]] = {}
    for layer, device in places.items():
        found.setdefault(device, []).append(layer)
    return found


if __name__ == "__main__":
    main()
