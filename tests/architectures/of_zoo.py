"""The models of the zoo as rows of the architecture table."""

import torch

from architectures.base import Architecture
from baechi import zoo


def our_own(name: str) -> Architecture:
    """A model of the zoo as an architecture."""

    def inputs() -> dict[str, torch.Tensor]:
        given = zoo.MODELS[name]("small")[1]
        return dict(zip(("source", "target") if len(given) == 2 else ("images",), given, strict=True))

    return Architecture(name, lambda: zoo.MODELS[name]("small")[0], inputs)


ZOO = tuple(our_own(name) for name in zoo.MODELS)
