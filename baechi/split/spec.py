"""How users say what is split: a number of shards, a dimension with one, or a `BatchSpec`.

    {"head": 4}                                        four shards along the first dimension
    {"head": {"out": 4}}                               four shards along "out"
    {"head": BatchSpec({"out": 8192}, [0, 1])}         shards of 8192, on devices 0, 1, 0, 1, ...

Nothing here needs torch.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

logger = logging.getLogger(__name__)

DeviceName = int | str


@dataclass(frozen=True)
class BatchSpec:
    """Shards of a given size, and on which devices they lie.

    Args:
        batch_sizes: by dimension, how long a shard is; the last one may be shorter.
        device_matrix: devices (names, or places in the cluster) of the shards, repeated as often as needed
            and cut off; the placer chooses where it is None.
        base_device: the device where outputs are joined; the placer chooses where it is None.

    Raises:
        ValueError: no dimension, or more than one; or a size below 1.
    """

    batch_sizes: Mapping[str, int]
    device_matrix: Sequence[DeviceName] | None = None
    base_device: DeviceName | None = None

    def __post_init__(self) -> None:
        given: Any = self.batch_sizes
        if not isinstance(given, Mapping):
            raise TypeError(f'batch_sizes is {given!r}: it is a size by dimension, such as {{"out": 4}}')
        if len(self.batch_sizes) != 1:
            raise ValueError(
                f"batch_sizes is {dict(self.batch_sizes)}: a layer is split along one dimension; name one"
            )
        ((dim, size),) = self.batch_sizes.items()
        check_number(size, f"the size of a shard along {dim!r}")
        object.__setattr__(self, "batch_sizes", MappingProxyType(dict(self.batch_sizes)))
        if self.device_matrix is not None:
            object.__setattr__(self, "device_matrix", tuple(_flat(self.device_matrix)))
            if not self.device_matrix:
                raise ValueError("device_matrix is empty: name a device, or leave it out")

    def __reduce__(self) -> tuple[Any, ...]:
        return BatchSpec, (dict(self.batch_sizes), self.device_matrix, self.base_device)

    def broadcast_device_matrix(self, shards: int) -> tuple[DeviceName, ...] | None:
        """The device of each shard; None where the placer chooses.

        Args:
            shards: how many there are.
        """
        if self.device_matrix is None:
            return None
        idle = self.device_matrix[shards:]
        if idle:
            logger.warning("%d shards leave devices idle: %s", shards, ", ".join(map(str, idle)))
        devices = self.device_matrix
        return tuple([devices[number % len(devices)] for number in range(shards)])


LayerSpec = int | Mapping[str, int] | BatchSpec | Sequence[BatchSpec]

Layers = Literal["auto"] | Mapping[str, LayerSpec]
"""Which layers are split: what fits nowhere, or each as it is said."""


@dataclass(frozen=True)
class Sharding:
    """How one layer is split.

    Args:
        dimension: its name.
        sizes: how long each shard is.
        devices: of each shard, as a user named it; None where the placer chooses.
        base: the device where outputs are joined, or None.
    """

    dimension: str
    sizes: tuple[int, ...]
    devices: tuple[DeviceName, ...] | None = None
    base: DeviceName | None = None


def sharding_of(spec: LayerSpec | Sharding, sizes: Mapping[str, int], layer: str) -> Sharding:
    """How a layer is split, as a user says it, or as it was worked out."""
    if isinstance(spec, Sharding):
        return spec
    number: Any = spec
    if isinstance(spec, BatchSpec):
        ((dim, batch),) = spec.batch_sizes.items()
        size = _size(dim, sizes, layer)
        cut = tuple([min(batch, size - start) for start in range(0, size, batch)])
        return Sharding(dim, cut, spec.broadcast_device_matrix(len(cut)), spec.base_device)
    if isinstance(spec, Mapping):
        if len(spec) != 1:
            raise ValueError(
                f"{layer} is to be split along {', '.join(spec) or 'nothing'}: name one dimension"
            )
        ((dim, number),) = spec.items()
    elif isinstance(spec, (list, tuple)):
        return _nested(list(spec), sizes, layer)
    else:
        dim = next(iter(sizes))
    check_number(number, f"the number of shards of {layer}")
    size = _size(dim, sizes, layer)
    if number > size:
        raise ValueError(f"{layer} is {size} long along {dim!r}: it cannot be split into {number} shards")
    few, more = divmod(size, number)
    return Sharding(dim, tuple([few + (index < more) for index in range(number)]))


def _nested(specs: list[Any], sizes: Mapping[str, int], layer: str) -> Sharding:
    """Specs one inside the other: inner shards lie where the outer one does, unless they say otherwise."""
    if not specs or not all(isinstance(spec, BatchSpec) for spec in specs):
        raise ValueError(f"{layer}: a list of specs has to be one of BatchSpec, and not empty")
    outer = sharding_of(specs[0], sizes, layer)
    if len(specs) == 1:
        return outer
    found: list[int] = []
    devices: list[DeviceName | None] = []
    for place, size in enumerate(outer.sizes):
        inner = _nested(specs[1:], {outer.dimension: size}, layer)
        found += inner.sizes
        own = outer.devices[place] if outer.devices is not None else None
        devices += inner.devices if inner.devices is not None else [own] * len(inner.sizes)
    named = tuple([device for device in devices if device is not None])
    return Sharding(outer.dimension, tuple(found), named if len(named) == len(found) else None, outer.base)


def _size(dim: str, sizes: Mapping[str, int], layer: str) -> int:
    if dim not in sizes:
        raise ValueError(f"{layer} has no dimension {dim!r} to split along: it has {', '.join(sizes)}")
    return sizes[dim]


def check_number(number: object, what: str) -> None:
    """Raise if a number of shards is none."""
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise ValueError(f"{what} is {number!r}: it has to be a whole number of at least 1")


def _flat(devices: Any) -> list[DeviceName]:
    """The devices of a list, of a list of lists, or of an array."""
    if isinstance(devices, (str, int)) and not isinstance(devices, bool):
        return [devices]
    if hasattr(devices, "tolist"):
        devices = devices.tolist()
    if hasattr(devices, "type") and hasattr(devices, "index") and not isinstance(devices, (list, tuple)):
        return [str(devices)]  # a torch.device
    if not isinstance(devices, Iterable):
        raise TypeError(f"device_matrix has {devices!r}: it takes names or numbers of devices")
    return [device for part in devices for device in _flat(part)]
