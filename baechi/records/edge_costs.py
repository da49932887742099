"""What an edge of the layer graph may carry: its attributes, each declared once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, final

from baechi.records.attributes import AbstractAttributes
from baechi.records.schema import Text


@final
@dataclass(frozen=True)
class EdgeCosts(AbstractAttributes):
    """What travels along an edge; `LayerGraph` lists the fields, with units and defaults."""

    bytes: Annotated[float, "bytes", "What travels if the ends lie on different devices."] = 0
    tensor: Annotated[
        Text | int | Sequence[Text | int] | None,
        "name",
        "Tells outputs of one source apart: each travels once to a device; if missing, there is one output.",
    ] = None
    parts: Annotated[
        Mapping[str, float] | None, "bytes, by tensor", "The outputs of the source, if there are several."
    ] = None
    copies: Annotated[
        Mapping[str, float] | None,
        "bytes, by tensor",
        "Memory of the copy on another device, where that is not what travels: a copy keeps the strides.",
    ] = None
    order_only: Annotated[bool, "flag", "The reader comes later, and nothing travels."] = False
    host_waits: Annotated[
        bool,
        "flag",
        "The host waits for values of the source before it calls the reader; then also `order_only`.",
    ] = False
    on_demand: Annotated[
        bool, "flag", "It travels when the reader's device asks for it, not as soon as it is made."
    ] = False
    no_grad: Annotated[bool, "flag", "No gradient comes back."] = False
    grad_home: Annotated[
        bool, "flag", "Of what comes from the host: its gradient goes back there, and the host waits for it."
    ] = False
    unsaved: Annotated[bool, "flag", "Autograd does not keep it for the reader."] = False
    held: Annotated[
        bool,
        "flag",
        "It stays to the end of forward anyway, so its last reader releases nothing of the source.",
    ] = False
    brief: Annotated[
        bool,
        "flag",
        "The tensor (a view) is gone behind this reader, and its copies with it, though its memory may stay.",
    ] = False
