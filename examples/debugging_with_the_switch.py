"""Something looks wrong: turn reordering off, see whether it goes away, and ask what waits."""

import torch
from torch import nn

import baechi


class TwoEncoders(nn.Module):
    """Two encoders in turn, on two devices: the second is reached late and could start early."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
        self.second = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
        self.careful = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one = self.first(x)
        total = one.sum()
        if self.careful and total.item() > 1e9:  # needed at once: nothing waits past here
            one = one * 0
        return one + self.second(x)


def main() -> None:
    torch.manual_seed(0)
    model, x = TwoEncoders(), torch.randn(32, 256)
    cluster = baechi.Cluster.virtual(2)
    model = baechi.distribute(model, x, cluster=cluster, placer="random:3")
    model.careful = True  # the plan was made without it
    with cluster:
        out = model(x)
        with baechi.reordering(model, False):
            same = model(x)
        print("same numbers, on and off:", torch.equal(out, same))
    found = baechi.check(model, x)
    print("equal:", found.equal)
    print(found)


if __name__ == "__main__":
    main()
