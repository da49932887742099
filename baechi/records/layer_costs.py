"""What a node of the layer graph may carry: its attributes, each declared once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, NotRequired, TypedDict, final

from baechi.records.attributes import AbstractAttributes
from baechi.records.device import HostWork
from baechi.records.schema import Count, Dimension, Place, Positive, Text


class Read(TypedDict):
    """A whole weight that a functional op is given: its shape, and its place among what the op is given."""

    shape: Sequence[int]
    place: int


class Splits(TypedDict):
    """How a layer can be split; `LayerCosts.splits` says what these are."""

    shapes: Mapping[str, Sequence[int]]
    tied: Mapping[str, Sequence[str]]
    refused: Text
    rows: NotRequired[int]
    bytes: NotRequired[Mapping[str, int]]
    lengths: NotRequired[Mapping[str, int]]


class Shard(TypedDict):
    """What a shard is of its layer; `LayerCosts.shard` says what these are."""

    of: str
    dimension: str
    sizes: Sequence[Positive]
    number: int
    cuts: Mapping[str, Dimension]
    tied: NotRequired[Mapping[str, Sequence[str]]]
    units: NotRequired[Mapping[str, tuple[Positive, Positive]]]
    function: NotRequired[str]


@final
@dataclass(frozen=True)
class LayerCosts(AbstractAttributes):
    """What a node is and what it costs; `LayerGraph` lists the fields, with units and defaults."""

    kind: Annotated[
        Literal["layer", "glue", "input"],
        "text",
        "A call of a module, a functional op between layers (`glue`), or an input of the model.",
    ] = "layer"
    module: Annotated[
        str | None, "name", "The module that it is a call of, or whose code it is in; else the node's name."
    ] = None
    type: Annotated[str | None, "name", "The class of a layer, the function of glue."] = None

    whole_because: Annotated[
        str, "text", "Of a layer with modules inside: why it is one layer nevertheless."
    ] = ""

    forward_s: Annotated[
        float | Mapping[str, float],
        "s",
        "Time of its forward: one number, divided by the device's speed, or a dict by device kind.",
    ] = 0
    backward_s: Annotated[
        float | Mapping[str, float], "s", "Time of its backward, in the same form as `forward_s`."
    ] = 0
    spread_s: Annotated[float, "s", "How far the rounds of a measurement lay apart."] = 0
    host_forward_s: Annotated[float, "s", "Host time to issue the kernels of its forward."] = 0
    host_backward_s: Annotated[float, "s", "Host time to issue the kernels of its backward."] = 0

    param_bytes: Annotated[float, "bytes", "Parameters, by storage; ties count on the first member."] = 0
    buffer_bytes: Annotated[float, "bytes", "Buffers, by storage; ties count on the first member."] = 0
    grad_bytes: Annotated[float, "bytes", "Gradients of the parameters that it owns."] = 0
    largest_grad_bytes: Annotated[
        float | None, "bytes", "Gradient of its largest weight; if missing, it has one weight."
    ] = None
    grads: Annotated[
        float | None,
        "number",
        "Weights that it owns and that get a gradient: no buffers; if missing, as many as `weights`.",
    ] = None
    output_bytes: Annotated[float, "bytes", "New storage that it hands on."] = 0
    passing_bytes: Annotated[
        float | None,
        "bytes",
        "The part of its output that is neither held nor saved; if missing, all that is not saved.",
    ] = None
    held_bytes: Annotated[
        float,
        "bytes",
        "What the model's code holds to the end of forward, not for autograd: a cache, what it returns.",
    ] = 0
    saved_bytes: Annotated[float, "bytes", "What autograd keeps of it until backward."] = 0
    lent_bytes: Annotated[float, "bytes", "Its output that autograd keeps for readers only."] = 0
    upstream_grad_bytes: Annotated[float, "bytes", "The gradient of its output."] = 0
    temp_bytes: Annotated[float, "bytes", "The peak beyond all these while it runs, in either phase."] = 0
    forward_temp_bytes: Annotated[float, "bytes", "The same in forward alone."] = 0
    backward_rise_bytes: Annotated[
        float,
        "bytes",
        "What its backward adds at most to what is there when it begins: gradients of its weights too, less "
        "what autograd kept for it alone.",
    ] = 0
    lasting_bytes: Annotated[
        float, "bytes", "What autograd keeps that is still held when backward is over, such as a cache."
    ] = 0

    flops: Annotated[float, "FLOP", "Arithmetic of its forward."] = 0
    moved_bytes: Annotated[float, "bytes", "What its forward reads and writes in memory."] = 0
    arithmetic: Annotated[
        Sequence[tuple[float, float]],
        "FLOP and bytes, by kernel",
        "Of each kernel of its forward that has arithmetic: its part of `flops` and of `moved_bytes`.",
    ] = ()
    kernels: Annotated[float, "number", "Kernels that its forward launches."] = 0
    backward_flops: Annotated[float, "FLOP", "Arithmetic of its backward."] = 0
    backward_moved_bytes: Annotated[float, "bytes", "What its backward reads and writes in memory."] = 0
    backward_arithmetic: Annotated[
        Sequence[tuple[float, float]], "FLOP and bytes, by kernel", "The same of its backward."
    ] = ()
    backward_kernels: Annotated[float, "number", "Kernels that its backward launches."] = 0
    backward_grad_bytes: Annotated[
        float | None,
        "bytes",
        "Gradients of weights that its backward makes first, where ties make these others than `grad_bytes`; "
        "if missing, the same.",
    ] = None
    host_work: Annotated[
        Mapping[HostWork, Count] | None,
        "number, by work",
        "What torch does on the host in its forward beside launches, by the names of `HostCosts`.",
    ] = None
    backward_host_work: Annotated[
        Mapping[HostWork, Count] | None, "number, by work", "The same in its backward."
    ] = None
    dtype: Annotated[str, "name", "The dtype that it computes in."] = "float32"

    twin: Annotated[str | None, "node", "An earlier layer that does the same work on other values."] = None
    colocate: Annotated[str | int | None, "name", "Its group; the nodes of a group share a device."] = None
    follows: Annotated[
        str | None,
        "node",
        "Of a functional op that a plan may place by itself: the input with which it lies if it does not.",
    ] = None
    pin: Annotated[str | None, "device", "The only device that it may be placed on."] = None
    weights: Annotated[
        Sequence[str] | None,
        "names",
        "Parameters and buffers that it owns, which `assign` moves; if missing, those of its module.",
    ] = None

    held_until: Annotated[
        str, "node", "If variables hold its passing output beyond the last reader, the node until whose end."
    ] = ""

    awaited_before: Annotated[
        str, "node", "If the host waits for its values, the node that the model's code reaches next."
    ] = ""

    awaited_after: Annotated[
        Sequence[float],
        "kernels",
        "If the host waits for its values while it runs: after how many of its kernels, each time; if "
        "missing, after all of them.",
    ] = ()

    runs_again: Annotated[
        Mapping[str, float] | None,
        "part, by node",
        "The nodes whose forward its backward runs again, since the model's code checkpoints them together; "
        "which part of it runs. Its `backward_s` has all of that.",
    ] = None

    returned: Annotated[
        Mapping[Place, float] | None,
        "bytes, by place",
        "What the model returns of it, by the place among all that the model returns.",
    ] = None
    losses: Annotated[
        Mapping[Place, float] | None, "bytes, by place", "The part of `returned` where backward begins."
    ] = None
    on_host: Annotated[
        bool, "flag", "It is a functional op that reads only inputs of the model, so it runs on the host."
    ] = False
    unread: Annotated[bool, "flag", "It stands for weights that nothing read; it does not run."] = False
    writes: Annotated[
        Literal["given", "other", ""],
        "text",
        "Whose memory it writes in place that others read: `'given'` to it, or `'other'`; none if empty.",
    ] = ""
    as_reached: Annotated[
        bool,
        "flag",
        "It launches where the code reaches it: it draws numbers, or writes memory that it did not make.",
    ] = False
    reaches: Annotated[bool, "flag", "It reads what it was not given: in an object, in another module."] = (
        False
    )
    reads: Annotated[
        Mapping[str, Read] | None,
        "record, by weight",
        "Of a functional op: whole weights that it is given, their `shape`, and their `place` among the "
        "tensors that it is given.",
    ] = None
    splits: Annotated[
        Splits | None,
        "record",
        "Of a layer that a rule splits: `shapes` of its weights, names that they are `tied` with, why it is "
        "`refused`, if it is, the `rows` of the example's batch and `bytes` of its weights, if it can be "
        "split along rows, and `lengths` of dimensions that are no weight's.",
    ] = None
    shard: Annotated[
        Shard | None,
        "record",
        "Of a shard: the module that it is a share `of`, the `dimension`, the `sizes` of all, its `number`, "
        "the axes along which weights are cut (`cuts`), names that these are `tied` with, and, where sizes "
        "count something else than a weight's axis, how many values a weight has, and how long one is "
        "(`units`). Of a shard of a functional op: the `function`.",
    ] = None
    joins: Annotated[str | None, "name", "The module whose shards' outputs it joins."] = None
    broadcasts: Annotated[
        str | None, "name", "The module whose weights it has, and sends to shards of rows."
    ] = None

    @property
    def weights_part(self) -> float:
        """The part of its backward that is for its weights alone, and can run later.

        A product with weights is multiplied with its input again and with its weights again, which takes the
        same time. What else has weights (a norm, a table) makes all its gradients in one kernel.
        """
        return 0.5 if self.grad_bytes and self.backward_flops else 0.0
