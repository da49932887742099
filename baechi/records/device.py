"""A device, a link, and what the runtime takes of the host: what a cluster is made of."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from math import ceil
from types import MappingProxyType
from typing import Annotated, Any, Literal

from baechi.records import schema
from baechi.records.schema import Bytes, DeviceName, LinkRate, Rate, Rule, Seconds, Speed
from baechi.units import format_bytes, parse_bytes

Reserve = float | int | str
"""A fraction of a device's memory (a float below 1), or bytes (a whole number, or text)."""

RESERVE = 0.06
"""What plans leave free of a GPU: of fragmented memory and of what libraries load later, a usual part."""


def reserved_bytes(memory_bytes: int, reserve: Reserve) -> int:
    """What a reserve is in bytes.

    Args:
        memory_bytes: all memory of the device.
        reserve: a fraction, or bytes.

    Raises:
        ValueError: it is neither.
    """
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
    "layer_call",
    "functional_op",
    "waiting_layer",
    "waiting_layer_threads",
    "transfer",
    "gradient_transfer",
    "backward_node",
    "task",
    "weights",
]
"""What the runtime does that takes the host time: the fields of `HostCosts`, without their unit."""


@dataclass(frozen=True)
class HostCosts:
    """Seconds of host time that baechi's runtime takes for each thing it does. They add up.

    A model on one device has no wrapped layers, so it pays for the transfers of its inputs and outputs only.

    Args:
        layer_call_s: seconds for each call of a layer.
        functional_op_s: seconds for each functional op between layers that computes on a device.
        waiting_layer_s: seconds more for each layer or functional op that waits and that the host launches.
        waiting_layer_threads_s: seconds more for each one that waits and that a thread launches.
        transfer_s: seconds for each transfer that autograd does not record.
        gradient_transfer_s: seconds for the forward of each transfer that autograd records.
        backward_node_s: seconds for each of the two backward nodes of such a transfer: one sends the
            gradient back, one receives it.
        task_s: seconds for each task of a pipeline: it is handed to its microbatch's thread, and back.
        weights_s: seconds for each layer whose gradients of weights are asked for apart (`weights_apart`).

    Raises:
        RecordError: a value is negative or not finite; all faults at once.
    """

    layer_call_s: Seconds = 0.0
    functional_op_s: Seconds = 0.0
    waiting_layer_s: Seconds = 0.0
    waiting_layer_threads_s: Seconds = 0.0
    transfer_s: Seconds = 0.0
    gradient_transfer_s: Seconds = 0.0
    backward_node_s: Seconds = 0.0
    task_s: Seconds = 0.0
    weights_s: Seconds = 0.0

    def __post_init__(self) -> None:
        schema.check(self, "host costs")

    @classmethod
    def usual(cls) -> "HostCosts":
        """Costs to plan with where nothing was measured: those of `baechi bench host` on one machine.

        Two x86 cores with other work on them, Python 3.11.7, torch 2.13.0 (CPU build), emulated devices
        outside of `with cluster:`; processor time. On GPUs add what their driver takes.
        """
        return cls(
            layer_call_s=1.2e-6,
            functional_op_s=2.0e-6,
            waiting_layer_s=85e-6,
            waiting_layer_threads_s=140e-6,
            transfer_s=18e-6,
            gradient_transfer_s=32e-6,
            backward_node_s=6e-6,
            task_s=90e-6,
            weights_s=70e-6,
        )

    def seconds(self, what: HostWork) -> float:
        """What one piece of work takes.

        Args:
            what: the work.
        """
        taken_s: float = getattr(self, f"{what}_s")
        return taken_s


def excess_over(devices: Iterable[Device], peak_bytes: Mapping[str, int]) -> dict[str, int]:
    """By how many bytes peaks exceed the memory of devices.

    Args:
        devices: the devices.
        peak_bytes: by device; 0 where it does not say.

    Returns:
        Bytes by device; only devices that are too full.
    """
    pairs = [(device.name, peak_bytes.get(device.name, 0) - device.memory_bytes) for device in devices]
    return {name: size_bytes for name, size_bytes in pairs if size_bytes > 0}


def by_kind(devices: Iterable[Any]) -> str:
    """How many devices there are of each kind: `48 x A100-40GB, 16 x H100-80GB`.

    Args:
        devices: each with a `kind`.
    """
    return ", ".join([f"{count} x {kind}" for kind, count in Counter(one.kind for one in devices).items()])


def shortage(excess_bytes: Mapping[str, int]) -> str:
    """Which devices are too full, and by how much: `cpu:0 by 4.01 MiB`, `cpu:0 to cpu:7 by 4.01 MiB each`.

    Args:
        excess_bytes: by device.
    """
    parts = []
    for size, group in groupby(excess_bytes, excess_bytes.__getitem__):
        names = list(group)
        which = (
            names[0] if len(names) == 1 else f"{names[0]} {'and' if len(names) == 2 else 'to'} {names[-1]}"
        )
        parts.append(f"{which} by {format_bytes(size)}{' each' * (len(names) > 1)}")
    return ", ".join(parts)
