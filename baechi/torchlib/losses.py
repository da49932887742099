"""Where training begins its backward, told by what a model returns."""

from collections.abc import Iterable
from typing import Any

import torch

from baechi.torchlib.autograd_nodes import node_of, nodes_from
from baechi.torchlib.tensors.pytree import named_tensors


def losses_among(outputs: Any) -> list[torch.Tensor]:
    """Where training begins its backward: at losses, which have one element; without any, at all outputs.

    A single number beside others is no loss if others depend on weights that it does not depend on, such as a
    learned scale that is returned beside features. It is one anyway if it is called `loss`, or comes first in
    a tuple.
    """
    named = [(name, tensor) for name, tensor in named_tensors("", outputs) if _has_gradient(tensor)]
    made = list({id(tensor): tensor for _, tensor in named}.values())
    numbers = [tensor for tensor in made if tensor.numel() == 1]
    others = [tensor for tensor in made if tensor.numel() != 1]
    if not numbers or not others:
        return made
    is_told = any(name == ".0" or name.rpartition(".")[2] == "loss" for name, n in named if n.numel() == 1)
    return numbers if is_told or _ends(others) <= _ends(numbers) else made


def _has_gradient(tensor: torch.Tensor) -> bool:
    return node_of(tensor) is not None and (tensor.is_floating_point() or tensor.is_complex())


def _ends(tensors: Iterable[torch.Tensor]) -> set[Any]:
    """The nodes at which backward from tensors ends: those of weights and inputs."""
    return {node for node in nodes_from(map(node_of, tensors)) if not node.next_functions}
