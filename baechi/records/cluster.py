"""The devices that a model is placed on, and the links between them."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from baechi.errors import RecordError
from baechi.records import files
from baechi.records.datasheet import datasheet, profiles_folder, usual_link
from baechi.records.device import Device, Link
from baechi.records.doors import open_door
from baechi.units import parse_bytes

HOST = "host"
Reception = Literal["serial", "free"]


@dataclass(frozen=True)
class Cluster:
    """Devices in order, and a link for each ordered pair of them.

    Args:
        devices: at least one; their order is the order in which placers fill them.
        links: by `(source, target)` device names; `"host"` is the host. A pair not named has `link`.
        link: the link of every pair that `links` does not name.
        reception: `"serial"`: a device receives one transfer at a time (design document, section
            1.3.3); `"free"`: transfers queue on their link only.
        emulated: the devices are emulated in this process; `with cluster:` turns that on.
        launch_s: seconds of host time to issue one kernel.

    Raises:
        RecordError: two devices of one name, or a link from or to a device that is not there.
    """

    devices: tuple[Device, ...]
    links: Mapping[tuple[str, str], Link] = field(default_factory=dict)
    link: Link = field(default_factory=Link)
    reception: Reception = "serial"
    emulated: bool = False
    launch_s: float = 5e-6
    _open: list[Any] = field(default_factory=list, init=False, repr=False, compare=False)

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

    @property
    def names(self) -> tuple[str, ...]:
        """The devices' names, in order."""
        return tuple(device.name for device in self.devices)

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
        memory: int | str | Sequence[int | str] | None = None,
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
        memory: int | str | Sequence[int | str] | None,
        link: Link | None,
        like: str,
        reception: Reception,
        *,
        emulated: bool,
    ) -> "Cluster":
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise ValueError(f"a cluster of {n!r} devices: it needs at least 1")
        sheet = datasheet(like)
        sizes = [memory] * n if memory is None or isinstance(memory, (int, float, str)) else list(memory)
        if len(sizes) != n:
            raise ValueError(f"{len(sizes)} memory sizes for {n} devices")
        devices = []
        for index, size in enumerate(sizes):
            given = {} if size is None else {"memory_bytes": parse_bytes(size)}
            devices.append(Device(name=f"{prefix}:{index}", kind=like, **{**sheet, **given}))
        return cls(
            devices=tuple(devices),
            link=link or usual_link(like),
            reception=reception,
            emulated=emulated,
        )

    @classmethod
    def discover(cls) -> "Cluster":
        """The accelerators that this process sees, with the memory that is free on each.

        Returns:
            Devices named as torch names them, such as `"cuda:0"`.

        Raises:
            BaechiError: there is none.
        """
        cluster: Cluster = open_door("discover")()
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
        emulation = open_door("emulate")(self)
        emulation.__enter__()
        self._open.append(emulation)
        return self

    def __exit__(self, *exception: Any) -> None:
        self._open.pop().__exit__(*exception)

    def to_json(self) -> str:
        """The cluster as JSON text."""
        return files.pack("cluster", self.body())

    @classmethod
    def from_json(cls, text: str) -> "Cluster":
        """Read what `to_json` wrote.

        Args:
            text: JSON text.

        Raises:
            RecordError: the text holds no cluster.
        """
        return cls.from_body(files.unpack("cluster", text))

    def save(self, path: str | Path) -> None:
        """Write the cluster to a file."""
        files.write("cluster", self.body(), path)

    @classmethod
    def load(cls, name_or_path: str | Path) -> "Cluster":
        """Read a cluster from a file, or one that is shipped (`profiles/clusters/`) by its name.

        Args:
            name_or_path: a path, or a shipped name.

        Raises:
            FileNotFoundError: neither a file nor a shipped name.
            RecordError: the file holds no cluster.
        """
        path = Path(name_or_path)
        shipped = profiles_folder() / "clusters"
        if not path.exists():
            path = shipped / f"{name_or_path}.json"
        if not path.exists():
            known = ", ".join(sorted(file.stem for file in shipped.glob("*.json"))) or "none"
            raise FileNotFoundError(f"no cluster file {str(name_or_path)!r}; shipped are: {known}")
        return cls.from_body(files.read("cluster", path))

    def body(self) -> dict[str, Any]:
        """The cluster as JSON-able data."""
        devices = [
            {
                "name": d.name,
                "kind": d.kind,
                "memory_bytes": d.memory_bytes,
                "speed": d.speed,
                "flops_per_s": dict(d.flops_per_s),
                "bytes_per_s": d.bytes_per_s,
            }
            for d in self.devices
        ]
        links = [[*pair, asdict(link)] for pair, link in self.links.items()]
        return {
            "devices": devices,
            "link": asdict(self.link),
            "links": links,
            "reception": self.reception,
            "emulated": self.emulated,
            "launch_s": self.launch_s,
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
        )
