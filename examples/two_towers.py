"""Two towers on two devices: three lines make the model a distributed one.

Run it anywhere: the devices are emulated. With accelerators, leave `cluster` out.
"""

import torch
from torch import nn
from torch.nn import functional as F

import baechi


class TwoTowers(nn.Module):
    """Images and texts into one space: two branches that could run side by side."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.image = nn.Sequential(
            nn.Conv2d(3, width, 3, 2), nn.ReLU(inplace=True), nn.Flatten(), nn.LazyLinear(width)
        )
        self.words = nn.Embedding(1000, width)
        self.text = nn.GRU(width, width, batch_first=True)

    def forward(self, image: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        pictures = F.normalize(self.image(image), dim=-1)
        sentences = F.normalize(self.text(self.words(text))[0][:, -1], dim=-1)
        return pictures @ sentences.t()


def main() -> None:
    torch.manual_seed(0)
    batch = {"image": torch.randn(8, 3, 16, 16), "text": torch.randint(1000, (8, 12))}
    model = TwoTowers()
    model(**batch)  # lets LazyLinear find its size
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    cluster = baechi.Cluster.virtual(2, memory="6MiB")
    model = baechi.distribute(model, batch, cluster=cluster, placer="m-etf", optimizer=optimizer)

    with cluster:
        for step in range(5):
            optimizer.zero_grad()
            loss = F.cross_entropy(8 * model(**batch), torch.arange(8))
            loss.backward()
            optimizer.step()
            print(f"step {step + 1}: loss {loss.item():.4f}")
    plan = baechi.plan_of(model)
    for device in plan.devices_used:
        layers = [name for name in plan.order_on(device) if not name.startswith("glue:")]
        print(f"{device}: {', '.join(layers)}")


if __name__ == "__main__":
    main()
