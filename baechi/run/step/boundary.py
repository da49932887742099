"""What a step asks where parts of its code are kept apart: in microbatches they are, in a plain step not."""

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch

from baechi.run.steady.layers import LayerFacts


class Boundary(Protocol):
    """The boundaries between the parts of one microbatch."""

    def reach_here(self, facts: LayerFacts, values: Iterable[Any], objects: list[Any]) -> str | None:
        """Note that the code reaches a layer, if nothing it is given has to be brought.

        Args:
            facts: what is known of the layer.
            values: its arguments.
            objects: gets those among them that are neither plain nor containers.

        Returns:
            The layer's name, with the number of its call; None if it is not reached yet.
        """

    def take_in(self, args: Any) -> Any:
        """Prepare the arguments of an `autograd.Function` that the model's code calls.

        Args:
            args: its arguments.
        """

    def made(self, result: Any) -> None:
        """Note what a functional op, or an `autograd.Function`, has made.

        Args:
            result: what it returned.
        """

    def is_apart(self, given: Iterable[torch.Tensor]) -> bool:
        """Whether some of these tensors have to be brought, though they lie where they are needed.

        Args:
            given: tensors.
        """

    def here(self, lies_here: Callable[[torch.Tensor], bool]) -> Callable[[torch.Tensor], bool]:
        """A function that says whether a tensor need not be brought.

        Args:
            lies_here: says whether it lies where it is needed.
        """
