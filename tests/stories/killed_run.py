"""The script of the story of a killed run: trains on two devices, and writes a checkpoint after each step.

python killed_run.py FOLDER
"""

import sys
from pathlib import Path

import torch
from torch import Tensor, nn

import baechi

STEPS = 6


def build() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 64), nn.Linear(64, 4))


def batch(step: int) -> tuple[Tensor, Tensor]:
    """The same each time, for a step."""
    drawn = torch.Generator().manual_seed(step)
    return torch.randn(16, 8, generator=drawn), torch.randn(16, 4, generator=drawn)


def train(model: nn.Module, file: Path, checkpoint: bool = True) -> dict[int, float]:
    """Train from the last checkpoint on, if there is one; the loss of each step."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    begin = 0
    if file.exists():
        saved = torch.load(file, map_location="cpu")
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        scheduler.load_state_dict(saved["scheduler"])
        torch.set_rng_state(saved["drawn"])
        begin = saved["steps"]
    losses = {}
    for step in range(begin, STEPS):
        optimizer.zero_grad()
        x, y = batch(step)
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses[step] = loss.item()
        if checkpoint:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            state |= {"scheduler": scheduler.state_dict(), "drawn": torch.get_rng_state(), "steps": step + 1}
            torch.save(state, file.with_suffix(".new"))
            file.with_suffix(".new").replace(file)  # a run that is killed leaves the last whole one
            print("saved", step + 1, flush=True)
    return losses


def main() -> None:
    cluster = baechi.Cluster.virtual(2, memory="1GiB")
    model = baechi.distribute(build(), batch(0)[0], cluster=cluster, placer="m-topo", optimizer="adam")
    torch.manual_seed(1)
    train(model, Path(sys.argv[1]) / "last.pt")


if __name__ == "__main__":
    main()
