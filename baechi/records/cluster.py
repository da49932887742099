"""The devices that a model is placed on, and the links between them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Literal

from baechi.errors import BaechiError, RecordError
from baechi.records.abstract import AbstractRecord
from baechi.records.described.checks import faults_in, host_faults, hosts_of, limited, links_among
from baechi.records.described.devices import CUDA, LinkLike, Memory, devices_of, kinds_of, link_of, read
from baechi.records.described.devices import HOST as HOST
from baechi.records.device import RESERVE, Device, Host, HostCosts, Link, Reserve
from baechi.records.lazy_imports import lazy_import
from baechi.records.rank_names import are_of_ranks, name_of, rank_of
from baechi.records.schema import DeviceName, Seconds, faults_of

Reception = Literal["serial", "free"]


@dataclass(frozen=True, repr=False)
class Cluster(AbstractRecord):
    """Devices in order, and a link for each ordered pair of them.

    Args:
        devices: at least one; their order is the order in which placers fill them.
        links: by `(source, target)` device names; `"host"` is the host. A pair not named has its host's link
            if both are in one of `hosts`, else `link`.
        link: the link of every other pair; where there are hosts, between them.
        reception: `"serial"`: a device receives one transfer at a time; `"free"`: transfers queue on their
            link only.
        emulated: the devices are emulated in this process; `with cluster:` turns that on. (Of a real
            cluster it turns on that steps are timed, for `last_step`.)
        launch_s: seconds of host time to issue one kernel.
        host: what baechi's own runtime takes of the host; None if that is not charged.
        hosts: the machines that have the devices; none where all are in one, or it does not matter.

    Raises:
        RecordError: two devices of one name, a link from or to a device that is not there, or a device that
            is in no host, though there are some, or in two.
    """

    record_kind: ClassVar[str] = "cluster"
    later: ClassVar[tuple[str, ...]] = ("host", "hosts")

    devices: tuple[Device, ...]
    links: Mapping[tuple[DeviceName, DeviceName], Link] = field(default_factory=dict)
    link: Link = field(default_factory=Link)
    reception: Reception = "serial"
    emulated: bool = False
    launch_s: Seconds = 5e-6
    host: HostCosts | None = None
    hosts: tuple[Host, ...] = ()
    _last: list[Any] = field(default_factory=list, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "devices", tuple(self.devices))
        object.__setattr__(self, "links", MappingProxyType(dict(self.links)))
        object.__setattr__(self, "hosts", tuple(self.hosts))
        names = [device.name for device in self.devices]
        faults = faults_of(self) + faults_in(names, self.links) + host_faults(names, self.hosts)
        if faults:
            raise RecordError("cluster is malformed:", tuple(faults))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The devices' names, in order."""
        return tuple(device.name for device in self.devices)

    @cached_property
    def host_of(self) -> Mapping[str, Host]:
        """By device, its host; empty where the cluster names none."""
        return {name: host for host in self.hosts for name in host.devices}

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """By device, the process that has it; empty where one process has all of them."""
        found = [rank_of(name) for name in self.names] if are_of_ranks(self.names) else []
        return tuple([rank for rank in found if rank is not None])

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
        home = self.host_of.get(source)
        inside = home is not None and home is self.host_of.get(target)
        return self.links.get((source, target), home.link if inside and home is not None else self.link)

    def part(self, names: Collection[str]) -> "Cluster":
        """The same cluster with some of its devices.

        Args:
            names: theirs; at least one.

        Raises:
            RecordError: none of them is in the cluster.
        """
        devices = tuple([device for device in self.devices if device.name in names])
        return replace(
            self, devices=devices, links=links_among(devices, self.links), hosts=hosts_of(devices, self.hosts)
        )

    @classmethod
    def uniform(
        cls,
        n: int,
        *,
        memory: Memory = None,
        link: LinkLike = None,
        like: str = "A100-80GB",
        reception: Reception = "serial",
        reserve: Reserve = 0,
    ) -> "Cluster":
        """A cluster of n equal devices, to plan for.

        Args:
            n: how many devices, at least 1.
            memory: as `virtual` takes it.
            link: as `parse` takes it.
            like: whose datasheet fills in what is not given.
            reception: see `Cluster`.
            reserve: what plans leave free of each: a fraction, or bytes, as text, too. See `discover`.

        Returns:
            Devices named `"device:0"`, `"device:1"` and so on.

        Raises:
            ValueError: n is below 1, a size is no size, or there is no such datasheet.
        """
        kinds = kinds_of(n, like)
        devices = devices_of(kinds, "device", memory, reserve)
        return cls(devices, link=link_of(link, kinds), reception=reception)

    @classmethod
    def virtual(
        cls,
        n: int | None = None,
        memory: Memory = None,
        like: str | Sequence[str] = "A100-80GB",
        link: LinkLike = None,
        *,
        reception: Reception | None = None,
        reserve: Reserve = 0,
        ranks: bool = False,
    ) -> "Cluster":
        """A cluster of devices emulated in this process, to run on without a GPU.

        Inside `with cluster:` every tensor has a home device, and an operation over two of them
        raises as it would on real devices. Outside of it a distributed model computes the same
        numbers, and nothing is checked.

        Args:
            n: how many devices, at least 1; as many as `like` lists, unless given.
            memory: memory of each, bytes or text, or a sequence of one for each.
            like: whose datasheet gives the rates, and the memory unless given; or one for each device, as in
                `["A100-40GB", "L4"]`.
            link: as `parse` takes it.
            reception: see `Cluster`; `"serial"` unless given, over ranks `"free"`.
            reserve: what plans leave free of each: a fraction, or bytes, as text, too. See `discover`.
            ranks: whether each device belongs to a process of its own. `torchrun` starts so many; in one
                process all are emulated, each with a host of its own.

        Returns:
            Devices named `"cpu:0"`, `"cpu:1"` and so on, those of ranks `"rank0/cpu:0"`, `"rank1/cpu:1"`.

        Raises:
            ValueError: n is below 1, a size is no size, there are not n of them, or there is no
                such datasheet.
        """
        kinds = kinds_of(n, like)
        devices, way = devices_of(kinds, "cpu", memory, reserve), link_of(link, kinds)
        if ranks:
            devices = tuple([replace(one, name=name_of(k, one.name)) for k, one in enumerate(devices)])
        reception = reception or ("free" if ranks else "serial")
        return cls(devices, link=way, reception=reception, emulated=True)

    @classmethod
    def parse(
        cls,
        text: "Cluster | str | Path",
        *,
        memory: Memory = None,
        link: LinkLike = None,
        one_card: bool = False,
        ranks: bool = False,
    ) -> "Cluster":
        """A cluster from one line. Where a cluster is asked for, the text itself will do.

        Args:
            text: devices with a datasheet, such as `"1xRTX-4090,2xRTX-3090"`, in parentheses those of a host:
                `"8x(8xH100-80GB)"`, `"2x(4xA100-40GB),1x(2xL40S)"`; `"cuda"`, all visible GPUs (`discover`);
                the name of a shipped cluster; or a file that `Cluster.save` wrote. (A cluster is returned as
                it is.)
            memory: as `virtual` takes it; the datasheets' unless given.
            link: between any two devices: a `Link`, `"pcie"`, `"nvlink"`, or a rate such as `"25GB/s"`; the
                slowest of the devices' usual ones unless given. Where there are hosts, between devices of two
                hosts, 100 Gb/s unless given; inside of a host devices have their usual link.
            one_card: whether the devices of each listed host share one network card; see `Host`.
            ranks: whether each device belongs to a process of its own, with a host of its own, as `torchrun`
                starts them. Also for a cluster that is given or loaded; then reception is `"free"`.

        Returns:
            Devices to plan for, named `"device:0"`, `"device:1"` and so on, those of hosts
            `"host0/device:0"`, those of ranks `"rank0/device:0"`; or the cluster so called.

        Raises:
            ValueError: there is no such datasheet, size or link, or `one_card` without hosts.
            BaechiError: there are no GPUs, and `"cuda"` asks for them.
            FileNotFoundError: it lists no devices, and there is no such name or file.
            RecordError: the file is malformed.
            TypeError: it is neither text nor a cluster.
        """
        if one_card and (isinstance(text, Cluster) or "(" not in str(text)):
            raise ValueError(f"one_card is for listed hosts such as '2x(4xA100-40GB)', not for {str(text)!r}")
        if ranks:
            return cls.parse(text, memory=memory, link=link, one_card=one_card)._over_ranks()
        if isinstance(text, Cluster) and memory is None and link is None:
            return text
        if text == CUDA and memory is None and link is None:
            return cls.discover()
        found = read(text, memory, link)
        if found is None:
            return cls.load(text)  # type: ignore[arg-type]
        devices, between, hosts = found
        hosts = tuple([replace(host, one_card=one_card) for host in hosts])
        return cls(devices, link=between, hosts=hosts)

    @classmethod
    def discover(
        cls,
        split: int = 1,
        cpu: int | str | None = None,
        *,
        reserve: Reserve = RESERVE,
        measure: bool = True,
    ) -> "Cluster":
        """The accelerators that this process sees, with the memory that is free on each.

        It is read when the driver's context and the workspace of matrix products are there. Links and
        the time of a launch are measured once for these devices, which takes about a second, and kept in
        the user's cache folder (`$XDG_CACHE_HOME/baechi`).

        Args:
            split: into how many devices to split each GPU, with equal parts of its memory and a
                stream each, so that several devices can be tried on one GPU.
            cpu: how much memory the CPU gives as a device beside them, bytes or text; unless given,
                nothing is placed there.
            reserve: what plans leave free of each GPU, for fragments, workspaces and kernels that are loaded
                later: a fraction of its memory, or bytes, as text, too.
            measure: whether what was not measured before is measured now; else it is guessed from datasheets.

        Returns:
            Devices named as torch names them, such as `"cuda:0"`; parts of one are `"cuda:0/0"`,
            `"cuda:0/1"`; the CPU is `"cpu"`.

        Raises:
            BaechiError: there is none.
            ValueError: `split` is below 1, or `cpu` or `reserve` is no size.
        """
        cluster: Cluster = lazy_import("discover")(split, cpu, reserve=reserve, measure=measure)
        return cluster

    def _over_ranks(self) -> "Cluster":
        """The same devices, each of a process of its own."""
        if self.ranks:
            return self
        inside = {name: name.removeprefix(f"{host.name}/") for name, host in self.host_of.items()}
        named = {name: name_of(rank, inside.get(name, name)) for rank, name in enumerate(self.names)}
        homes = [replace(host, devices=tuple([named[one] for one in host.devices])) for host in self.hosts]
        return replace(
            self,
            devices=tuple([replace(one, name=named[one.name]) for one in self.devices]),
            links={(named.get(a, a), named.get(b, b)): link for (a, b), link in self.links.items()},
            hosts=tuple(homes),
            reception="free",
        )

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
        left = limited(self.devices, max_memory)
        return replace(
            self, devices=left, links=links_among(left, self.links), hosts=hosts_of(left, self.hosts)
        )

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
