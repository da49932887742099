"""Models of the public literature, each in its smallest form that still has all its tricks."""

from collections.abc import Callable
from typing import Any

from architectures.base import Architecture, seeded
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from literature import generative, implicit, learners, sequences, structured, vision

BUILDS: dict[Callable[[], nn.Module], Callable[[], dict[str, Any]]] = {
    generative.Glow: generative.image,
    generative.LadderVAE: generative.vectors,
    generative.RadianceField: generative.rays,
    generative.WassersteinGAN: generative.real,
    implicit.Equilibrium: implicit.features,
    implicit.NeuralODE: implicit.points,
    learners.BYOL: learners.views,
    learners.HyperNetwork: learners.photo,
    learners.MAML: learners.tasks,
    sequences.AdaptiveSteps: sequences.series,
    sequences.TreeLSTM: sequences.trees,
    sequences.TuringMachine: sequences.series,
    sequences.WaveNet: sequences.samples,
    structured.DLRM: structured.clicks,
    structured.GraphAttention: structured.molecules,
    structured.MixtureOfExperts: structured.tokens,
    vision.Capsules: vision.digit,
    vision.DenseNet: vision.photo,
    vision.Detector: vision.photos,
    vision.Perceiver: vision.photo,
    vision.SlotAttention: vision.photo,
}


def _double(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


def _model(build: Any, inputs: Callable[[], dict[str, Any]]) -> Architecture:
    """In double precision, where another order of a sum shows in the last bits only."""
    return Architecture(build.__name__, seeded(lambda: build().double()), lambda: tree_map(_double, inputs()))


LITERATURE = {model.name: model for model in [_model(*row) for row in BUILDS.items()]}
