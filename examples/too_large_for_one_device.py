"""A model that one device cannot hold in training: what is missing is known before anything runs."""

import torch
from torch import nn

import baechi


def tower(width: int, depth: int) -> nn.Sequential:
    return nn.Sequential(*[nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(depth)])


class Towers(nn.Module):
    """Two towers that meet at the end."""

    def __init__(self, width: int = 128, depth: int = 6) -> None:
        super().__init__()
        self.left, self.right = tower(width, depth), tower(width, depth)
        self.head = nn.Linear(2 * width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(torch.cat([self.left(x), self.right(x)], dim=1))
        return out


def main() -> None:
    torch.manual_seed(0)
    model, x = Towers(), torch.randn(64, 128)
    for devices in (1, 2):
        answer = baechi.fits(model, x, baechi.Cluster.virtual(devices, memory="3MiB"), optimizer="adam")
        print(
            f"{devices} of 3 MiB:",
            "fits" if answer else "does not fit",
            "- largest batch",
            answer.largest_batch,
        )

    cluster = baechi.Cluster.virtual(2, memory="3MiB")
    optimizer = torch.optim.Adam(model.parameters())
    model = baechi.distribute(model, x, cluster=cluster, optimizer=optimizer)
    with cluster:
        for step in range(3):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            print(f"step {step + 1}: loss {loss.item():.4f}")
    peaks = baechi.last_step(model).peak_bytes
    print("every device within its memory:", all(peak <= 3 * 2**20 for peak in peaks.values()))


if __name__ == "__main__":
    main()
