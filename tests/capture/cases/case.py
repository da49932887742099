"""A small model whose layer graph is known by heart, and a table of these."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from baechi.records import Inputs

Made = tuple[nn.Module, list[Inputs]]

BOTH = (True, False)


@dataclass(frozen=True)
class Case:
    """A model, calls of it, and how it is captured.

    Args:
        name: what is hard about it.
        make: builds the model and its example inputs; several of them give the union.
        training: whether the graph is that of training.
        whole: what the user keeps whole.
    """

    name: str
    make: Callable[[], Made]
    training: bool
    whole: tuple[str, ...] = ()

    @property
    def several(self) -> bool:
        """Whether its graph is the union of several."""
        return self.name.startswith("the_union_")

    @property
    def key(self) -> str:
        """Its key in `graphs.json`."""
        return f"{self.name}, {'training' if self.training else 'inference'}"


CASES: list[Case] = []


def case(
    *modes: bool, whole: tuple[str, ...] = ()
) -> Callable[[Callable[[], tuple[Any, ...]]], Callable[[], tuple[Any, ...]]]:
    """Add a case: a function that returns a model and the arguments of one call."""

    def add(make: Callable[[], tuple[Any, ...]]) -> Callable[[], tuple[Any, ...]]:
        def made() -> Made:
            model, *arguments = make()
            calls = [a for a in arguments if isinstance(a, Inputs)]
            return model, calls or [Inputs(*arguments)]

        for training in modes:
            CASES.append(Case(make.__name__, made, training, whole))
        return make

    return add


class Net(nn.Module):
    """A module whose forward is a function, over the layers and weights that it is given."""

    def __init__(self, function: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self, *args, **kwargs)


def linear(inputs: int = 4, outputs: int = 4) -> nn.Linear:
    return nn.Linear(inputs, outputs)


def linears(names: str) -> dict[str, nn.Module]:
    return {name: nn.Linear(4, 4) for name in names}


def rows(*shape: int) -> Tensor:
    return torch.ones(shape or (2, 4))
