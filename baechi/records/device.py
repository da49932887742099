"""A device, a link, and what the runtime takes of the host: what a cluster is made of."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from math import ceil
from types import MappingProxyType
from typing import Annotated, Any, Literal, get_args

from baechi.errors import RecordError
from baechi.records import schema
from baechi.records.schema import Bytes, DeviceName, LinkRate, Rate, Rule, Seconds, Speed
from baechi.units import format_bytes, parse_bytes

Reserve = float | int | str
"""A fraction of a device's memory (a float below 1), or bytes (a whole number, or text)."""

RESERVE = 0.06
"""What plans leave free of a GPU: of fragmented memory and of what libraries load later, a usual part."""


def reserved_bytes(memory_bytes: int, reserve: Reserve) -> int:
    """What a reserve is in bytes."""
    if isinstance(reserve, float) and 0 <= reserve < 1:
        return ceil(reserve * memory_bytes)
    if isinstance(reserve, (bool, float)):
        raise ValueError(f"reserve is {reserve!r}: a fraction from 0.0 to below 1.0, or bytes such as '2GiB'")
    return parse_bytes(reserve)


@dataclass(frozen=True)
class Device:
    """One accelerator (or the host) as placers see it.

    Args:
        name: how it is addressed everywhere, such as `"cuda:0"`.
        kind: its hardware, such as `"A100-80GB"`; layer times may be given by kind.
        memory_bytes: how many bytes of it a plan may use.
        speed: divides layer times that are one number (1 = the device that was measured).
        flops_per_s: peak arithmetic rate by dtype name, such as `{"float32": 19.5e12}`.
        bytes_per_s: rate of its memory.

    Raises:
        RecordError: a value is negative or missing; all faults at once.
    """

    name: DeviceName
    kind: str = "cpu"
    memory_bytes: Bytes = 0
    speed: Speed = 1.0
    flops_per_s: Mapping[str, Rate] = field(default_factory=dict)
    bytes_per_s: Annotated[
        float, Rule("0, or at least 1", lambda rate: rate == 0 or 1 <= rate <= schema.MOST)
    ] = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "flops_per_s", MappingProxyType(dict(self.flops_per_s)))
        schema.check(self, f"device {schema.shown(self.name)}")

    def __reduce__(self) -> tuple[object, ...]:
        return (Device, tuple(self.body().values()))

    def body(self) -> dict[str, Any]:
        """The device as JSON-able data."""
        body: dict[str, Any] = schema.form_of(Device).write(self)
        return body


@dataclass(frozen=True)
class Link:
    """The way from one device to another: a transfer of b bytes takes `latency_s + b / bytes_per_s`.

    Args:
        latency_s: seconds before the first byte arrives.
        bytes_per_s: rate after that.
        peer: whether the devices copy directly, not through the host.
        residual: how far measured copies lay from this at most, as a part of their time.

    Raises:
        RecordError: a value is out of range.
    """

    latency_s: Seconds = 10e-6
    bytes_per_s: LinkRate = 16e9
    peer: bool = True
    residual: float = 0.0

    def __post_init__(self) -> None:
        schema.check(self, "link")


HostWork = Literal[
    "view",
    "operator",
    "product",
    "convolution",
    "recorded",
    "module_call",
    "leaf_call",
    "node",
    "list",
    "list_tensor",
    "updated_tensor",
    "zeroed_tensor",
    "layer_call",
    "functional_op",
    "full_call",
    "waiting_layer",
    "waiting_layer_threads",
    "transfer",
    "gradient_transfer",
    "backward_node",
    "task",
    "weights",
    "step",
    "microbatch",
    "lane_layer",
    "lane_op",
    "boundary",
    "waiting_gradient",
    "split_layer",
    "chunk",
]
"""What takes the host time beside launching kernels: the fields of `HostCosts`, without their unit."""

TORCH_WORK: tuple[HostWork, ...] = get_args(HostWork)[:12]
"""What torch itself does; the rest is what baechi's runtime does."""


_NOT_IN_PROGRAMS: tuple[HostWork, ...] = (
    "recorded", "module_call", "leaf_call", "node", "layer_call", "functional_op", "full_call", "lane_layer",
    "lane_op", "boundary",
)  # fmt: skip


@dataclass(frozen=True)
class Host:
    """A machine of a cluster: its devices, which reach each other faster than those of other hosts.

    Args:
        name: such as `"host0"`.
        devices: their names, at least one.
        link: between any two of them that the cluster has no own link for.
        one_card: whether they share a network card: what comes to them from other hosts comes one transfer
            after the other.

    Raises:
        RecordError: a value is missing, or there is no device.
    """

    name: DeviceName
    devices: tuple[DeviceName, ...]
    link: Link = field(default_factory=Link)
    one_card: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "devices", tuple(self.devices))
        schema.check(self, f"host {schema.shown(self.name)}")
        if not self.devices:
            raise RecordError(f"host {schema.shown(self.name)} is malformed:", ("it has no devices",))


@dataclass(frozen=True)
class HostCosts:
    """Seconds of host time that torch and baechi's runtime take for each thing they do. They add up.

    What the driver takes to launch a kernel comes on top (`Cluster.launch_s`). A model on one device has no
    wrapped layers: of the runtime it pays for the transfers of its inputs and outputs only.

    Args:
        view_s: torch: seconds for an operator that computes nothing: a view, an allocation, a question.
        operator_s: torch: for any other operator but the next two.
        product_s: torch: for a product of matrices, or attention.
        convolution_s: torch: for a convolution.
        recorded_s: torch: more for an operator that autograd records.
        module_call_s: torch: for a call of a module that has modules inside, its own Python included.
        leaf_call_s: torch: for a call of a module that has none, or of `nn.Sequential`.
        node_s: torch: for a node of autograd's graph in backward, beside its operators. Each device has a
            thread, and they work beside each other.
        list_s: torch: for an operator on lists, as optimizers use them.
        list_tensor_s: torch: more for each tensor of its first list.
        updated_tensor_s: torch: for each weight in an optimizer's step, beside its operators.
        zeroed_tensor_s: torch: for each weight in `zero_grad`.
        layer_call_s: seconds for each call of a layer.
        functional_op_s: for each functional op between layers that computes on a device.
        full_call_s: more for a layer or functional op whose arguments are not plain tensors, or which finds
            something else than in the calls before.
        waiting_layer_s: more for each layer or functional op that waits and that the host launches.
        waiting_layer_threads_s: more for each one that waits and that a thread launches.
        transfer_s: for each transfer that autograd does not record.
        gradient_transfer_s: for the forward of each transfer that autograd records.
        backward_node_s: for each of the two backward nodes of such a transfer: one sends the gradient
            back, one receives it. They are Python: one runs at a time.
        task_s: for each task of a pipeline: it is handed to its microbatch's thread, and back.
        weights_s: for each layer whose gradients of weights are asked for apart (`weights_apart`).
        step_s: for each call of a model that lies on several devices.
        microbatch_s: for each microbatch of a step: its thread, its part of the batch, its results.
        lane_layer_s: more for a call of a layer in a microbatch.
        lane_op_s: more for a functional op in a microbatch.
        boundary_s: for each tensor that crosses between stages of a pipeline.
        waiting_gradient_s: for each weight in a step in microbatches, whose gradients are handed over.
        split_layer_s: more for a call of a split layer, whose shards are given their parts of the weights.
        chunk_s: for each chunk that `dispatch` runs.
        measured_on: the machine, Python and torch of these figures.

    Raises:
        RecordError: a value is negative or not finite; all faults at once.
    """

    view_s: Seconds = 0.0
    operator_s: Seconds = 0.0
    product_s: Seconds = 0.0
    convolution_s: Seconds = 0.0
    recorded_s: Seconds = 0.0
    module_call_s: Seconds = 0.0
    leaf_call_s: Seconds = 0.0
    node_s: Seconds = 0.0
    list_s: Seconds = 0.0
    list_tensor_s: Seconds = 0.0
    updated_tensor_s: Seconds = 0.0
    zeroed_tensor_s: Seconds = 0.0
    layer_call_s: Seconds = 0.0
    functional_op_s: Seconds = 0.0
    full_call_s: Seconds = 0.0
    waiting_layer_s: Seconds = 0.0
    waiting_layer_threads_s: Seconds = 0.0
    transfer_s: Seconds = 0.0
    gradient_transfer_s: Seconds = 0.0
    backward_node_s: Seconds = 0.0
    task_s: Seconds = 0.0
    weights_s: Seconds = 0.0
    step_s: Seconds = 0.0
    microbatch_s: Seconds = 0.0
    lane_layer_s: Seconds = 0.0
    lane_op_s: Seconds = 0.0
    boundary_s: Seconds = 0.0
    waiting_gradient_s: Seconds = 0.0
    split_layer_s: Seconds = 0.0
    chunk_s: Seconds = 0.0
    measured_on: str = ""

    def __post_init__(self) -> None:
        schema.check(self, "host costs")

    @classmethod
    def usual(cls) -> "HostCosts":
        """Costs to plan with where nothing was measured.

        Those of the machine with an H200 in the project's benchmarks (16 cores, Python 3.12.3, torch 2.11.0):
        what forward and backward of BERT and ViT take there, less 5 us a launch, is 0.5 to 1.4 times what
        these say, 0.9 in the middle. How it divides among kinds of work is from the bench `witness` on two
        x86 cores with other work on them, which are as fast.
        """
        return cls(
            view_s=5e-6,
            operator_s=3.5e-6,
            product_s=4e-6,
            convolution_s=30e-6,
            recorded_s=2.5e-6,
            module_call_s=80e-6,
            leaf_call_s=5e-6,
            node_s=2e-6,
            list_s=10e-6,
            list_tensor_s=2e-6,
            updated_tensor_s=2.5e-6,
            zeroed_tensor_s=1e-6,
            layer_call_s=25e-6,
            functional_op_s=100e-6,
            full_call_s=110e-6,
            waiting_layer_s=270e-6,
            waiting_layer_threads_s=630e-6,
            transfer_s=80e-6,
            gradient_transfer_s=100e-6,
            backward_node_s=40e-6,
            task_s=360e-6,
            weights_s=90e-6,
            step_s=270e-6,
            microbatch_s=1200e-6,
            lane_layer_s=15e-6,
            lane_op_s=130e-6,
            boundary_s=180e-6,
            waiting_gradient_s=30e-6,
            split_layer_s=450e-6,
            chunk_s=1350e-6,
            measured_on="a server with an H200, Python 3.12, torch 2.11",
        )

    def seconds(self, what: HostWork) -> float:
        """What one piece of work takes.

        Args:
            what: the work.
        """
        taken_s: float = getattr(self, f"{what}_s")
        return taken_s

    def seconds_of(self, work: Mapping[HostWork, float]) -> float:
        """What several pieces of work take.

        Args:
            work: how many of each.
        """
        return sum([times * self.seconds(what) for what, times in work.items()])

    def by_work(self) -> dict[HostWork, float]:
        """Seconds by work."""
        return {what: self.seconds(what) for what in get_args(HostWork)}

    def of_programs(self) -> "HostCosts":
        """The same, without what programs do not do: calls of modules and layers, and records of autograd."""
        less: dict[HostWork, float] = dict.fromkeys(_NOT_IN_PROGRAMS, 0.0)
        return self.with_seconds({**less, "gradient_transfer": self.transfer_s})

    def of_runtime(self) -> "HostCosts":
        """The same, without what torch itself takes."""
        return self.with_seconds(dict.fromkeys(TORCH_WORK, 0.0))

    def with_seconds(self, by_work: Mapping[HostWork, float]) -> "HostCosts":
        """The same, with other seconds for some work.

        Args:
            by_work: what that takes.
        """
        given: dict[str, Any] = {f"{what}_s": seconds for what, seconds in by_work.items()}
        return replace(self, **given)


def excess_over(devices: Iterable[Device], peak_bytes: Mapping[str, int]) -> dict[str, int]:
    """By how many bytes peaks exceed the memory of devices."""
    pairs = [(device.name, peak_bytes.get(device.name, 0) - device.memory_bytes) for device in devices]
    return {name: size_bytes for name, size_bytes in pairs if size_bytes > 0}


def by_kind(devices: Iterable[Any]) -> str:
    """How many devices there are of each kind: `48 x A100-40GB, 16 x H100-80GB`."""
    return ", ".join([f"{count} x {kind}" for kind, count in Counter(one.kind for one in devices).items()])


def shortage(excess_bytes: Mapping[str, int]) -> str:
    """Which devices are too full, and by how much: `cpu:0 by 4.01 MiB`, `cpu:0 to cpu:7 by 4.01 MiB each`."""
    parts = []
    for size, group in groupby(excess_bytes, excess_bytes.__getitem__):
        names = list(group)
        which = (
            names[0] if len(names) == 1 else f"{names[0]} {'and' if len(names) == 2 else 'to'} {names[-1]}"
        )
        parts.append(f"{which} by {format_bytes(size)}{' each' * (len(names) > 1)}")
    return ", ".join(parts)
