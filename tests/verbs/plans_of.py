"""Plans by several placers, in digests: `python -m verbs.plans_of MODEL [without]`."""

import hashlib
import json
import sys
from collections.abc import Callable
from unittest.mock import patch

import torch
from torch import Tensor, nn

import baechi


class Branches(nn.Module):
    """Branches of unequal layers, sums of them, and a head that is much larger."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(16, 32)
        self.ways = nn.ModuleList(
            [
                nn.Sequential(nn.Linear(32, 24 + 8 * way), nn.ReLU(), nn.Linear(24 + 8 * way, 32))
                for way in range(4)
            ]
        )
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 300)

    def forward(self, x: Tensor) -> Tensor:
        stem = self.stem(x)
        mixed = torch.stack([way(stem) for way in self.ways]).sum(0)
        result: Tensor = self.head(self.norm(mixed + stem))
        return result.square().mean()


MODELS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "branches": lambda: (Branches(), torch.ones(8, 16)),
    "encoder": lambda: (
        nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2),
        torch.ones(8, 5, 16),
    ),
}


def digests(kind: str) -> dict[str, str]:
    """By what was planned, a digest of its text.

    Args:
        kind: the model.
    """
    from baechi.place.search import rounds  # which asks whether numba is there

    found: dict[str, str] = {}

    def note(name: str, made: baechi.LayerGraph | baechi.Plan | baechi.Pipeline) -> None:
        found[name] = hashlib.sha256(made.to_json().encode()).hexdigest()

    model, x = MODELS[kind]()
    clusters = {"tight": baechi.Cluster.virtual(3, memory="330KiB")}
    if kind == "encoder":
        clusters["unequal"] = baechi.Cluster.virtual(like=["A100-80GB", "L4", "L4"])
    for where, cluster in clusters.items():
        graph = baechi.profile(model, x, cluster=cluster, source="estimate")
        note(f"graph, {where}", graph)
        with patch.multiple(rounds, ESTIMATES=30, MOVES=30):  # less of everything
            for placer in ("m-topo", "m-etf", "m-sct", "auto"):
                note(f"{placer}, {where}", baechi.place(graph, cluster, placer))
        parts = baechi.profile(model, x, cluster=cluster, source="estimate", microbatches=4)
        note(f"pipeline, {where}", baechi.pipeline(baechi.place(parts, cluster, "m-etf"), 4))
        note(f"searched pipeline, {where}", baechi.place(parts, cluster, microbatches=4))
    return found


if __name__ == "__main__":
    if "without" in sys.argv:
        sys.modules["numba"] = None  # type: ignore[assignment]
    print(json.dumps(digests(sys.argv[1])))
