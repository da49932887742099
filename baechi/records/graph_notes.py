"""What a layer graph says of the whole model, in `graph.graph`: its notes, each declared once."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, final

from baechi.records.attributes import AbstractAttributes
from baechi.records.schema import Microbatches


@final
@dataclass(frozen=True)
class GraphNotes(AbstractAttributes):
    """Notes on a graph; `LayerGraph` lists the fields."""

    training: Annotated[bool, "flag", "Whether the costs are those of training."] = False
    measured: Annotated[bool, "flag", "Whether times were measured."] = False
    accumulate: Annotated[
        bool,
        "flag",
        "Whether gradients of weights are there all the time: then times of backward include adding to them.",
    ] = False
    backward_captured: Annotated[bool, "flag", "Whether backward was run, so that its work is known."] = False
    model: Annotated[str, "name", "The class of the model."] = "model"
    provenance: Annotated[str, "text", "Where the figures come from."] = ""
    outputs: Annotated[
        Literal["inputs", "device"] | None,
        "text",
        "`'device'` if what the model returns stays where it was made; else it goes to where inputs lie.",
    ] = None
    optimizer: Annotated[str | None, "name", "The optimizer whose state counts."] = None
    microbatches: Annotated[
        Microbatches | None, "number", "In how many parts the batch is that the costs are one of."
    ] = None
    weights_apart: Annotated[
        bool | None,
        "flag",
        "Whether the backward of weights is a task of its own where a step is split in microbatches.",
    ] = None
    programs: Annotated[
        bool,
        "flag",
        "Whether the model's code is captured once and run as programs: it calls no modules, and autograd "
        "records nothing.",
    ] = False
    containers: Annotated[Sequence[str], "names", "Modules that were called and have layers inside."] = ()
    recompute: Annotated[Sequence[str], "names", "Modules that run again in backward."] = ()
    uncounted: Annotated[Sequence[str], "names", "Operators whose arithmetic is not known."] = ()
