"""From a device map and to one: come with what you have, leave with what was found."""

import torch
from torch import nn

import baechi


class Translator(nn.Module):
    """An encoder and a decoder that reads its own input, too."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
        self.decoder = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, 8))

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.decoder(torch.cat([self.encoder(source), target], dim=1))
        return out


def main() -> None:
    torch.manual_seed(0)
    model = Translator()
    batch = {"source": torch.randn(4, 32), "target": torch.randn(4, 32)}
    expected = model(**batch)

    cluster = baechi.Cluster.virtual(2)
    model = baechi.distribute(model, batch, cluster=cluster, device_map={"encoder": 0, "decoder": 1})
    by_hand = baechi.plan_of(model)
    print("by hand:", by_hand.to_device_map())
    print("same numbers:", torch.equal(model(**batch), expected))

    found = baechi.place(by_hand.graph, cluster)
    print("found:", found.placer, found.to_device_map())
    print("no slower:", found.timeline.makespan_s <= by_hand.timeline.makespan_s)
    again = baechi.Plan.from_device_map(by_hand.graph, cluster, found.to_device_map())
    print("back again:", again.device_of == found.device_of)


if __name__ == "__main__":
    main()
