"""Unequal devices: work goes by speed, weights by memory, and one device is used where more are no gain."""

import torch
from torch import nn

import baechi
from baechi import Cluster, Device, Link


class Experts(nn.Module):
    """Six experts side by side, their answers summed."""

    def __init__(self, width: int = 512) -> None:
        super().__init__()
        self.experts = nn.ModuleList(
            [nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU()) for _ in range(6)]
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([expert(x).mean(dim=1) for expert in self.experts]).sum(dim=0)


def cluster_of(*kinds: str, gigabytes_per_s: float) -> Cluster:
    """Devices of these kinds, joined by links of that speed; rates and memory from datasheets."""
    devices = [
        device
        for index, kind in enumerate(kinds)
        for device in [Device(f"device:{index}", kind, **_sheet(kind))]
    ]
    return Cluster(tuple(devices), link=Link(latency_s=1e-5, bytes_per_s=gigabytes_per_s * 1e9))


def _sheet(kind: str) -> dict[str, object]:
    device = Cluster.uniform(1, like=kind).devices[0]
    return {
        "memory_bytes": device.memory_bytes,
        "flops_per_s": device.flops_per_s,
        "bytes_per_s": device.bytes_per_s,
    }


def main() -> None:
    with torch.device("meta"):  # nothing is allocated: this is planning
        model, x = Experts(), torch.randn(32_768, 512)
    for kinds, rate in ((("H100-80GB", "V100-32GB"), 25.0), (("H100-80GB", "V100-32GB"), 0.05)):
        cluster = cluster_of(*kinds, gigabytes_per_s=rate)
        graph = baechi.profile(model, x, cluster=cluster, source="estimate")
        plan = baechi.place(graph, cluster, optimizer="sgd")
        busy = {device: 0 for device in cluster.names}
        for layer, device in plan.device_of.items():
            busy[device] += graph.nodes[layer].get("type") == "Linear"
        print(f"{rate} GB/s: experts on {', '.join(kinds)}: {list(busy.values())}")


if __name__ == "__main__":
    main()
