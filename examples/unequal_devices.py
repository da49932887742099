"""An unequal desktop: an RTX 4090 beside an RTX 3090. Work goes by speed, weights by memory.

Behind a slow link one device is faster, and the plan says so. Nothing is allocated: this is planning. The
picture of the first plan is unequal_devices.svg.
"""

from pathlib import Path

import torch
from torch import nn

import baechi
from baechi import report


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
    with torch.device("meta"):
        model, x = Experts(), torch.randn(16_384, 512)
    plans = []
    for link in ("pcie", "0.05GB/s"):
        cluster = baechi.Cluster.parse("1xRTX-4090,1xRTX-3090", link=link)
        graph = baechi.profile(model, x, cluster=cluster, source="estimate")
        plans.append(plan := baechi.place(graph, cluster, optimizer="sgd"))
        experts = dict.fromkeys([device.kind for device in cluster.devices], 0)
        for layer, device in plan.device_of.items():
            experts[cluster.device(device).kind] += graph.nodes[layer].get("type") == "Linear"
        print(f"{link}: {plan.timeline.makespan_s * 1e3:.1f} ms a step, experts on {experts}")
    Path(__file__).with_suffix(".svg").write_text(report.to_svg(plans[0]), encoding="utf-8")


if __name__ == "__main__":
    main()
