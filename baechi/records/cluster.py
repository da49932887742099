"""The devices that a model is placed on, and the links between them."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, ClassVar, Literal

from baechi.errors import BaechiError, RecordError
from baechi.records.abstract import AbstractRecord
from baechi.records.datasheet import equal_devices, usual_link
from baechi.records.device import Device, HostCosts, Link
from baechi.records.lazy_imports import lazy_import
from baechi.units import parse_bytes

HOST = "host"
Reception = Literal["serial", "free"]
Memory = int | str | Sequence[int | str] | None


@dataclass(frozen=True, repr=False)
class Cluster(AbstractRecord):
    """Devices in order, and a link for each ordered pair of them.

    Args:
        devices: at least one; their order is the order in which placers fill them.
        links: by `(source, target)` device names; `"host"` is the host. A pair not named has `link`.
        link: the link of every pair that `links` does not name.
        reception: `"serial"`: a device receives one transfer at a time (design document, section
            1.3.3); `"free"`: transfers queue on their link only.
        emulated: the devices are emulated in this process; `with cluster:` turns that on. (Of a real
            cluster it turns on that steps are timed, for `last_step`.)
        launch_s: seconds of host time to issue one kernel.
        host: what baechi's own runtime takes of the host; None if that is not charged.

    Raises:
        RecordError: two devices of one name, or a link from or to a device that is not there.
    """

    record_kind: ClassVar[str] = "cluster"

    devices: tuple[Device, ...]
    links: Mapping[tuple[str, str], Link] = field(default_factory=dict)
    link: Link = field(default_factory=Link)
    reception: Reception = "serial"
    emulated: bool = False
    launch_s: float = 5e-6
    host: HostCosts | None = None
    _last: list[Any] = field(default_factory=list, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "devices", tuple(self.devices))
        object.__setattr__(self, "links", MappingProxyType(dict(self.links)))
        faults = [] if self.devices else ["it has no devices"]
        names = [device.name for device in self.devices]
        twice = sorted({name for name in names if names.count(name) > 1})
        faults += [f"two devices are named {name!r}" for name in twice]
        if HOST in names:
            faults.append(f"a device is named {HOST!r}, which is the host's name")
        for pair in self.links:
            faults += [f"a link names {end!r}, no device of it" for end in pair if end not in {*names, HOST}]
        if self.reception not in ("serial", "free"):
            faults.append(f"reception is {self.reception!r}, not 'serial' or 'free'")
        if not 0 <= self.launch_s < float("inf"):
            faults.append(f"launch_s is {self.launch_s}, not a finite number of at least 0")
        if faults:
            raise RecordError("cluster is malformed:", tuple(faults))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The devices' names, in order."""
        return tuple(device.name for device in self.devices)

    @cached_property
    def on_host(self) -> frozenset[str]:
        """The CPU beside accelerators (`"cpu"`): the host computes there itself, and goes on when it has."""
        found = frozenset([name for name in self.names if name.partition("/")[0] == "cpu"])
        return found if len(found) < len(self) else frozenset()

    def __len__(self) -> int:
        return len(self.devices)

    def __reduce__(self) -> tuple[Any, ...]:
        return (Cluster.from_json, (self.to_json(),))

    def device(self, name: str) -> Device:
        """The device of that name.

        Args:
            name: such as `"cuda:0"`.

        Raises:
            KeyError: no such device.
        """
        for device in self.devices:
            if device.name == name:
                return device
        raise KeyError(f"no device {name!r} in this cluster: it has {', '.join(self.names)}")

    def link_between(self, source: str, target: str) -> Link:
        """The link from one device to another.

        Args:
            source: a device's name, or `"host"`.
            target: a device's name, or `"host"`.
        """
        return self.links.get((source, target), self.link)

    @classmethod
    def uniform(
        cls,
        n: int,
        *,
        memory_bytes: int | str | None = None,
        link: Link | None = None,
        like: str = "A100-80GB",
        reception: Reception = "serial",
    ) -> "Cluster":
        """A cluster of n equal devices, to plan for.

        Args:
            n: how many devices, at least 1.
            memory_bytes: memory of each, bytes or text; the datasheet's unless given.
            link: the link between any two; the datasheet's usual one unless given.
            like: whose datasheet fills in what is not given.
            reception: see `Cluster`.

        Returns:
            Devices named `"device:0"`, `"device:1"` and so on.

        Raises:
            ValueError: n is below 1, the size is no size, or there is no such datasheet.
        """
        return cls._equal(n, "device", memory_bytes, link, like, reception, emulated=False)

    @classmethod
    def virtual(
        cls,
        n: int,
        memory: Memory = None,
        like: str = "A100-80GB",
        link: Link | None = None,
        *,
        reception: Reception = "serial",
    ) -> "Cluster":
        """A cluster of n devices emulated in this process, to run on without a GPU.

        Inside `with cluster:` every tensor has a home device, and an operation over two of them
        raises as it would on real devices. Outside of it a distributed model computes the same
        numbers, and nothing is checked.

        Args:
            n: how many devices, at least 1.
            memory: memory of each, bytes or text, or a sequence of n of them.
            like: whose datasheet gives the rates, and the memory unless given.
            link: the link between any two; the datasheet's usual one unless given.
            reception: see `Cluster`.

        Returns:
            Devices named `"cpu:0"`, `"cpu:1"` and so on.

        Raises:
            ValueError: n is below 1, a size is no size, there are not n of them, or there is no
                such datasheet.
        """
        return cls._equal(n, "cpu", memory, link, like, reception, emulated=True)

    @classmethod
    def _equal(
        cls,
        n: int,
        prefix: str,
        memory: Memory,
        link: Link | None,
        like: str,
        reception: Reception,
        *,
        emulated: bool,
    ) -> "Cluster":
        return cls(
            devices=equal_devices(n, prefix, memory, like),
            link=link or usual_link(like),
            reception=reception,
            emulated=emulated,
        )

    @classmethod
    def discover(cls, split: int = 1, cpu: int | str | None = None) -> "Cluster":
        """The accelerators that this process sees, with the memory that is free on each.

        512 MiB of each GPU are kept free. Links that `baechi.measure.links` saved for
        these devices are taken; others are guessed from datasheets.

        Args:
            split: into how many devices to split each GPU, with equal parts of its memory and a
                stream each, so that several devices can be tried on one GPU.
            cpu: how much memory the CPU gives as a device beside them, bytes or text; unless given,
                nothing is placed there.

        Returns:
            Devices named as torch names them, such as `"cuda:0"`; parts of one are `"cuda:0/0"`,
            `"cuda:0/1"`; the CPU is `"cpu"`.

        Raises:
            BaechiError: there is none.
            ValueError: `split` is below 1, or `cpu` is no size.
        """
        cluster: Cluster = lazy_import("discover")(split, cpu)
        return cluster

    def with_memory(self, max_memory: Mapping[int | str, int | str]) -> "Cluster":
        """The same devices with other memory; a device given 0 is left out.

        Args:
            max_memory: bytes or text by device name or index, as accelerate takes it. A device not
                named keeps its memory. The key `"cpu"` is allowed and means the host, where nothing
                is placed unless the cluster has a device of that name.

        Returns:
            A cluster.

        Raises:
            RecordError: a key is no device of the cluster, a size is no size, or no device is left.
        """
        faults: list[str] = []
        sizes: dict[str, int] = {}
        for key, size in max_memory.items():
            name = self.names[key] if isinstance(key, int) and 0 <= key < len(self) else key
            if name not in self.names and name != "cpu":
                faults.append(f"{key!r} is no device: there are {', '.join(self.names)}")
                continue
            try:
                sizes[str(name)] = parse_bytes(size)
            except ValueError as error:
                faults.append(str(error))
        left = [replace(d, memory_bytes=sizes.get(d.name, d.memory_bytes)) for d in self.devices]
        left = [d for d in left if d.name not in sizes or d.memory_bytes > 0]
        if not left and not faults:
            faults.append("it leaves no device")
        if faults:
            raise RecordError("max_memory does not match the cluster:", tuple(faults))
        kept = {d.name for d in left} | {HOST}
        links = {pair: link for pair, link in self.links.items() if set(pair) <= kept}
        return replace(self, devices=tuple(left), links=links)

    def __enter__(self) -> "Cluster":
        watched = lazy_import("watch")(self)
        watched.__enter__()
        self._last[:] = [watched]
        return self

    def __exit__(self, *exception: Any) -> None:
        self._last[0].__exit__(*exception)

    @property
    def emulation(self) -> Any:
        """What `with cluster:` turned on, open or over: clocks, streams, memory (`Emulation`).

        Raises:
            BaechiError: this cluster was not emulated yet, or is real.
        """
        if not self._last or not self.emulated:
            raise BaechiError("this cluster was not emulated yet: use `with cluster:`")
        return self._last[0]

    def body(self) -> dict[str, Any]:
        """The cluster as JSON-able data."""
        devices = [device.body() for device in self.devices]
        links = [[*pair, asdict(link)] for pair, link in self.links.items()]
        return {
            "devices": devices,
            "link": asdict(self.link),
            "links": links,
            "reception": self.reception,
            "emulated": self.emulated,
            "launch_s": self.launch_s,
            "host": None if self.host is None else asdict(self.host),
        }

    @classmethod
    def from_body(cls, body: Mapping[str, Any]) -> "Cluster":
        """The cluster that `body` wrote.

        Args:
            body: JSON-able data.
        """
        return cls(
            devices=tuple(Device(**device) for device in body["devices"]),
            links={(source, target): Link(**link) for source, target, link in body["links"]},
            link=Link(**body["link"]),
            reception=body["reception"],
            emulated=body["emulated"],
            launch_s=body["launch_s"],
            host=None if body.get("host") is None else HostCosts(**body["host"]),
        )
