"""Many rows over a fast and a slow device: three ways to share them, on the emulated clock."""

import torch
from torch import nn

import baechi


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 16)
    ).eval()
    x = torch.randn(4608, 64)
    cluster = baechi.Cluster.virtual(like=["L4", "CPU"])
    fast = cluster.names[0]
    schedulers = {
        "the fast device alone": baechi.SimpleScheduler(fast, 512),
        "by priority": baechi.HybridScheduler(cluster, 512, priorities=[1, 0]),
        "earliest finish": baechi.HybridScheduler(cluster, 512, policy="earliest_finish"),
    }
    expected = model(x)
    for name, scheduler in schedulers.items():
        dispatched = baechi.dispatch(model, scheduler, workers="thread")
        with cluster, torch.no_grad():
            y = dispatched(x)
            seconds = cluster.emulation.now_s
        print(f"{name}: {seconds * 1e6:.0f} us, same numbers: {torch.allclose(y, expected, atol=1e-5)}")


if __name__ == "__main__":
    main()
