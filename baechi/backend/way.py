"""The two ends of a transfer, and what is known of a copy until it arrives."""

from dataclasses import dataclass
from typing import Any

import torch

from baechi.backend.abstract import AbstractBackend


@dataclass(slots=True, eq=False)
class Way:
    """The two ends of a transfer, and what to wait for at each.

    Args:
        backend: the devices.
        source: where the tensor lies.
        target: where it goes.
        bare: whether neither end has a stream or a clock, so that a copy is all there is to do.
        left: the event after tx has read the tensor.
        arrived: the event after rx has written the copy.
        back: the gradient's way, from the target to the source.
        made_on: the stream that made the gradient. Autograd may add to the gradient there, in place.
        held: the gradient, while it is being sent. The extra reference keeps autograd from adding to it
            in place: it does so only with a reference count of one. If that is the only reference when
            the gradient has arrived, nothing can add to it any more, and nothing waits.
    """

    backend: AbstractBackend
    source: str
    target: str
    bare: bool = False
    left: Any = None
    arrived: Any = None
    back: "Way | None" = None
    made_on: Any = None
    held: torch.Tensor | None = None


@dataclass(slots=True, eq=False)
class Departed:
    """What is known of a copy until it arrives.

    The nodes know the way, and not this: what is never read goes with its last reference, and with it all
    that autograd kept of what led there.

    Args:
        way: its way.
        token: stands for the copy between the nodes; None if autograd does not record the transfer.
    """

    way: Way
    token: torch.Tensor | None = None
