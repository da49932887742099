"""What is compared with peers: models and clusters, fixed in `docs/peers.md` before anything was measured."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec

import torch
from torch import nn

from baechi.records.cluster import Cluster
from benches.models import large
from benches.models.small import Example

MICROBATCHES = 16

CLUSTERS = {
    "8 A100": lambda: Cluster.uniform(8, like="A100-80GB", link="nvlink"),
    "4 A100": lambda: Cluster.uniform(4, like="A100-80GB", link="nvlink"),
    "4 A100 + 4 L40S": lambda: Cluster.parse("4xA100-80GB,4xL40S"),
    "2 4090 + 2 3090": lambda: Cluster.parse("2xRTX-4090,2xRTX-3090"),
    "2 hosts of 4 A100, 25 Gb/s": lambda: Cluster.parse("2x(4xA100-80GB)", link="3.125GB/s"),
}
"""By name, without a charged host."""

MIXED = ("4 A100 + 4 L40S", "2 4090 + 2 3090", "2 hosts of 4 A100, 25 Gb/s")

_WIDTH, _BRANCHES, _DEPTH, _TOKENS = 1024, 4, 8, 256


@dataclass(frozen=True)
class Subject:
    """A model on a cluster.

    Args:
        model: its name, with its batch.
        make: makes it on the `meta` device.
        cluster: a key of `CLUSTERS`.
        microbatches: into how many its batch is split.
    """

    model: str
    make: Callable[[], Example]
    cluster: str
    microbatches: int = MICROBATCHES

    def devices(self) -> Cluster:
        """The cluster, whose host takes no time: what the host takes is said beside it."""
        return replace(CLUSTERS[self.cluster](), launch_s=0.0)


class Branches(nn.Module):
    """Four encoders side by side, each with its own input, and a head behind all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.encoders = nn.ModuleList([_encoder() for _ in range(_BRANCHES)])
        self.head = nn.Linear(_BRANCHES * _WIDTH, _WIDTH)

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Inputs of (batch, tokens, features), one for each encoder; the loss."""
        pairs = zip(self.encoders, inputs, strict=True)
        found = torch.cat([encoder(x).mean(1) for encoder, x in pairs], -1)
        loss: torch.Tensor = self.head(found).square().mean()
        return loss


def _encoder() -> nn.Module:
    layer = partial(nn.TransformerEncoderLayer, _WIDTH, 16, 4 * _WIDTH, 0.0, batch_first=True)
    return nn.Sequential(*[layer(norm_first=True) for _ in range(_DEPTH)])


def branches() -> Example:
    """Four encoders of 8 blocks, 64 rows of 256 words each, bf16."""
    with torch.device("meta"):
        rows = [torch.zeros(64, _TOKENS, _WIDTH, dtype=torch.bfloat16) for _ in range(_BRANCHES)]
        return Branches().to(torch.bfloat16), tuple(rows)


def subjects() -> Iterator[Subject]:
    """All rows of the page; those of transformers only if it is installed."""
    of = partial(partial, large.of_transformers)
    chain = "decoder of 24 blocks, 32 x 1024", of(large.decoder)
    worded = "the same, 256,000 words", of(partial(large.decoder, words=256_000))
    llama = "Llama-7B, 16 x 2048", of(partial(large.llama, batch=16))
    halves = "T5-3B, 16 x 512", of(partial(large.t5, batch=16))
    experts = "Mixtral-like, 16 x 1024", of(partial(large.mixtral, batch=16))
    unet, side = ("U-Net 256 x 256, 64", large.unet), ("four encoders, 64 x 256", branches)
    here = {
        "8 A100": (chain, worded, llama, halves, experts, unet, side),
        "4 A100": (side, unet),
        "4 A100 + 4 L40S": (chain, worded, halves, unet),
        "2 4090 + 2 3090": (chain, side),
        "2 hosts of 4 A100, 25 Gb/s": (chain, llama, halves),
    }
    own = (unet, side)
    for cluster, models in here.items():
        for name, make in models:
            if (name, make) in own or find_spec("transformers") is not None:
                yield Subject(name, make, cluster)
