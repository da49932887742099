"""What is compared with peers: models and clusters, fixed in `docs/peers.md` before anything was measured."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from baechi.records.cluster import Cluster
from benches.models import large
from benches.models.small import Example
from benches.pipeline.subjects import WithLoss

MICROBATCHES = 16

CLUSTERS = {
    "8 A100": lambda: Cluster.uniform(8, like="A100-80GB", link="nvlink"),
    "4 A100": lambda: Cluster.uniform(4, like="A100-80GB", link="nvlink"),
    "4 A100 + 4 L40S": lambda: Cluster.parse("4xA100-80GB,4xL40S"),
    "2 4090 + 2 3090": lambda: Cluster.parse("2xRTX-4090,2xRTX-3090"),
    "2 hosts of 4 A100, 25 Gb/s": lambda: Cluster.parse("2x(4xA100-80GB)", link="3.125GB/s"),
}
"""By name, without a charged host."""

_WIDTH, _BRANCHES, _DEPTH, _TOKENS = 1024, 4, 8, 256


@dataclass(frozen=True)
class Subject:
    """A model on a cluster.

    Args:
        model: its name, with its batch.
        make: makes it on the `meta` device.
        cluster: a key of `CLUSTERS`.
        microbatches: into how many its batch is split.
        block: what names of its blocks match; nothing where it has none that are alike.
    """

    model: str
    make: Callable[[], Example]
    cluster: str
    microbatches: int = MICROBATCHES
    block: str = ""

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


class Squared(nn.Module):
    """A model whose loss is the mean square of what it returns."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The loss."""
        loss: torch.Tensor = self.model(x).square().mean()
        return loss


def unet() -> Example:
    """The U-Net of the other benches, with a loss."""
    model, inputs = large.unet()
    return Squared(model), inputs


def words(make: Callable[[Any], Example]) -> Example:
    """A model of transformers that returns its loss alone: nobody fetches the scores of all words."""
    model, inputs = large.of_transformers(make)
    return WithLoss(model, classifies=False), inputs


def branches() -> Example:
    """Four encoders of 8 blocks, 64 rows of 256 words each, bf16."""
    with torch.device("meta"):
        rows = [torch.zeros(64, _TOKENS, _WIDTH, dtype=torch.bfloat16) for _ in range(_BRANCHES)]
        return Branches().to(torch.bfloat16), tuple(rows)


def subjects() -> Iterator[Subject]:
    """All rows of the page's second table; those of transformers only if it is installed."""
    known = _models()
    for cluster, names in _ROWS.items():
        for name in names:
            if name in known:
                model, make, block = known[name]
                yield Subject(model, make, cluster, block=block)


def scheduled() -> Iterator[Subject]:
    """Those of its first table: two models on four and eight devices, in 8, 16 and 32 microbatches."""
    known = _models()
    for name in ("decoder", "U-Net"):
        for cluster in ("4 A100", "8 A100"):
            for number in (8, 16, 32):
                if name in known:
                    model, make, block = known[name]
                    yield Subject(model, make, cluster, number, block)


_ROWS = {
    "8 A100": ("decoder", "worded", "llama", "T5", "experts", "U-Net", "branches"),
    "4 A100": ("branches", "U-Net"),
    "4 A100 + 4 L40S": ("decoder", "worded", "T5", "U-Net"),
    "2 4090 + 2 3090": ("decoder", "branches"),
    "2 hosts of 4 A100, 25 Gb/s": ("decoder", "llama", "T5"),
}


def _models() -> dict[str, tuple[str, Callable[[], Example], str]]:
    """By a short name: the name, what makes it, and what names of its blocks match."""
    layer = r".*\.layers\.\d+"
    found = {
        "U-Net": ("U-Net 256 x 256, 64", unet, ""),
        "branches": ("four encoders, 64 x 256", branches, r"encoders\.\d+\.\d+"),
    }
    if find_spec("transformers") is not None:
        of = partial(partial, words)
        found |= {
            "decoder": ("decoder of 24 blocks, 32 x 1024", of(large.decoder), layer),
            "worded": ("the same, 256,000 words", of(partial(large.decoder, words=256_000)), layer),
            "llama": ("Llama-7B, 16 x 2048", of(partial(large.llama, batch=16)), layer),
            "T5": ("T5-3B, 16 x 512", of(partial(large.t5, batch=16)), r".*coder\.block\.\d+"),
            "experts": ("Mixtral-like, 16 x 1024", of(partial(large.mixtral, batch=16)), layer),
        }
    return found
