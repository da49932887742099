"""Unequal devices: work goes by speed, weights by memory, and one device is used where more are no gain."""

import torch
from torch import nn

import baechi


class Experts(nn.Module):
    """Six experts side by side, their answers summed."""

    def __init__(self, width: int = 512) -> None:
        super().__init__()
        self.experts = nn.ModuleList(
            [nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU()) for _ in range(6)]
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([expert(x).mean(dim=1) for expert in self.experts]).sum(dim=0)


def main() -> None:
    with torch.device("meta"):  # nothing is allocated: this is planning
        model, x = Experts(), torch.randn(32_768, 512)
    for kinds, rate in ((("H100-80GB", "V100-32GB"), 25.0), (("H100-80GB", "V100-32GB"), 0.05)):
        cluster = baechi.Cluster.parse("1x" + ",1x".join(kinds), link=f"{rate}GB/s")
        graph = baechi.profile(model, x, cluster=cluster, source="estimate")
        plan = baechi.place(graph, cluster, optimizer="sgd")
        busy = {device: 0 for device in cluster.names}
        for layer, device in plan.device_of.items():
            busy[device] += graph.nodes[layer].get("type") == "Linear"
        print(f"{rate} GB/s: experts on {', '.join(kinds)}: {list(busy.values())}")


if __name__ == "__main__":
    main()
