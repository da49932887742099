"""The placement paper's three models, as a user of plain PyTorch would write them.

Each has a function that gives the model and example inputs, at full size or small enough for a
test, on any device; `MODELS` finds the function by the model's name. Nothing here knows of baechi.
The paper: Jeon et al., "Baechi: Fast Device Placement of Machine Learning Graphs", SoCC 2020.

The functions take the names of the files beside them: `baechi.zoo.gnmt` is the function; classes of
the file come by `from baechi.zoo.gnmt import GNMT`.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from baechi.zoo.gnmt import GNMT
from baechi.zoo.inception import InceptionV3
from baechi.zoo.transformer import PADDING, Transformer

__all__ = ["GNMT", "MODELS", "InceptionV3", "Transformer", "gnmt", "inception_v3", "transformer"]


class _Size(NamedTuple):
    """What a size means: arguments of the model, and the shape of its example inputs."""

    options: Mapping[str, Any]
    batch: int
    lengths: tuple[int, int]  # of source and target, in tokens; height and width, in pixels


# Full: batches and lengths of the order that the placement paper used. The small images are the
# least that leave a grid of 2x2 to the last blocks: in training, batch normalization needs more
# than one value of a channel.
_INCEPTION = {
    "full": _Size({}, 32, (299, 299)),
    "small": _Size(
        {
            "classes": 10,
            "width": 1 / 8,
            "pool_channels": (32,),
            "inner_channels": (128,),
            "e_blocks": 1,
        },
        2,
        (107, 107),
    ),
}
_GNMT = {
    "full": _Size({"vocab": 30_000}, 128, (40, 40)),
    "small": _Size({"vocab": 50, "hidden": 16}, 4, (8, 6)),
}
_TRANSFORMER = {
    "full": _Size({"vocab": 30_000}, 64, (50, 50)),
    "small": _Size(
        {"vocab": 50, "features": 16, "inner": 32, "heads": 2, "layers": 2, "max_length": 16},
        4,
        (8, 6),
    ),
}


def inception_v3(
    size: str = "full",
    batch: int | None = None,
    *,
    seed: int = 0,
    device: str | torch.device = "cpu",
    **options: Any,
) -> tuple[InceptionV3, tuple[Tensor]]:
    """Build Inception-v3 and a batch of random images."""
    chosen = _choose(_INCEPTION, size)
    with _seeded(seed, device):
        model = InceptionV3(**{**chosen.options, **options})
        images = torch.randn(_or(batch, chosen.batch), 3, *chosen.lengths)
    return model.to(device), (images.to(device),)


def gnmt(
    size: str = "full",
    batch: int | None = None,
    *,
    seed: int = 0,
    device: str | torch.device = "cpu",
    **options: Any,
) -> tuple[GNMT, tuple[Tensor, Tensor]]:
    """Build GNMT and a batch of random sentences, some of them padded."""
    chosen = _choose(_GNMT, size)
    arguments = {**chosen.options, **options}
    with _seeded(seed, device):
        model = GNMT(**arguments)
        source, target = _sentences(arguments["vocab"], _or(batch, chosen.batch), chosen.lengths)
    return model.to(device), (source.to(device), target.to(device))


def transformer(
    size: str = "full",
    batch: int | None = None,
    *,
    seed: int = 0,
    device: str | torch.device = "cpu",
    **options: Any,
) -> tuple[Transformer, tuple[Tensor, Tensor]]:
    """Build the Transformer and a batch of random sentences, some of them padded."""
    chosen = _choose(_TRANSFORMER, size)
    arguments = {**chosen.options, **options}
    with _seeded(seed, device):
        model = Transformer(**arguments)
        source, target = _sentences(arguments["vocab"], _or(batch, chosen.batch), chosen.lengths)
    return model.to(device), (source.to(device), target.to(device))


MODELS: dict[str, Callable[..., tuple[nn.Module, tuple[Tensor, ...]]]] = {
    "inception-v3": inception_v3,
    "gnmt": gnmt,
    "transformer": transformer,
}


def _choose(sizes: Mapping[str, _Size], size: str) -> _Size:
    """The entry of that name; a ValueError names the known ones."""
    if size not in sizes:
        raise ValueError(f"unknown size {size!r} (known: {', '.join(sizes)})")
    return sizes[size]


def _or(value: int | None, default: int) -> int:
    """The value, or the default where there is none."""
    return default if value is None else value


@contextmanager
def _seeded(seed: int, device: str | torch.device) -> Iterator[None]:
    """Make new tensors on the CPU (or meta) from the seed, so every device gets the same ones."""
    place = "meta" if torch.device(device).type == "meta" else "cpu"
    with torch.random.fork_rng(devices=[]), torch.device(place):
        # Not torch.manual_seed, which would seed the accelerators' generators too, for good.
        torch.default_generator.manual_seed(seed)
        yield


def _sentences(vocab: int, batch: int, lengths: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Random tokens (batch, source) and (batch, target); every other source ends in padding."""
    source, target = (torch.randint(PADDING + 1, vocab, (batch, length)) for length in lengths)
    source[1::2, -(lengths[0] // 4) :] = PADDING
    return source, target
