"""One part of a microbatch: what others read of it, what it reads of others, and stretches of its code."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge

from baechi.backend.way import Way
from baechi.run.pipeline.graph.apart import Later


@dataclass(eq=False, slots=True)
class Exit:
    """Where gradients of a tensor that other parts read come in.

    Args:
        edge: the tensor, as autograd's graph has it.
        place: where the tensor lies.
        is_closed: whether they have been used: none may come any more.
        incoming: gradients; with their ways, if they were sent.
    """

    edge: GradientEdge
    place: str
    is_closed: bool = False
    incoming: list[tuple[torch.Tensor, Way | None]] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class Cut:
    """A tensor that a part reads of another part.

    Args:
        exit: where its gradient goes.
        place: where the part reads it.
        grad: its gradient, when the backward of the part that reads it is over.
    """

    exit: Exit
    place: str
    grad: torch.Tensor | None = None


@dataclass(eq=False, slots=True)
class Part:
    """What one microbatch's graph has of a stage.

    Args:
        number: its place among the microbatch's parts.
        place: the device; empty if it has none.
        above: the numbers of the parts that it needs, also through others.
        readers: the numbers of the parts that read what it makes.
        exits: by node and output, what others read.
        cuts: what it reads of others.
        is_done: whether its backward is over, as far as others wait for it.
        left: what of it is left: the gradients of weights, where these are apart.
    """

    number: int
    place: str
    above: set[int] = field(default_factory=set)
    readers: set[int] = field(default_factory=set)
    exits: dict[tuple[Any, int], Exit] = field(default_factory=dict)
    cuts: list[Cut] = field(default_factory=list)
    is_done: bool = False
    left: list[Later] = field(default_factory=list)

    def exit_of(self, tensor: torch.Tensor, place: str) -> Exit:
        """The exit of a tensor that this part made."""
        edge = get_gradient_edge(tensor)
        key = edge.node, edge.output_nr
        if key not in self.exits:
            self.exits[key] = Exit(edge, place)
        return self.exits[key]


@dataclass(eq=False, slots=True)
class Stretch:
    """A stretch of the model's code.

    Args:
        part: the part that records it; None for none.
        end: the event after all that was issued on its device, when the stretch is over; None until then.
    """

    part: Part | None
    end: Any = None
