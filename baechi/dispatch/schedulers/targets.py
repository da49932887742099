"""What a scheduler gives chunks to: a device, or all the devices of a plan.

A name alone is a device of the emulated cluster at work, if that has such a device; else it is torch's.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from baechi.errors import RecordError
from baechi.records.cluster import Cluster
from baechi.records.plan import Plan

DeviceLike = str | Cluster | Plan
DevicesLike = Cluster | Sequence[DeviceLike]


@dataclass(frozen=True)
class Target:
    """Where a replica of the model lies.

    Args:
        name: tells targets apart.
        device: the device's name; empty if the target is a plan.
        cluster: the cluster of the device, if it is known.
        plan: places the replica over several devices; None if it lies on one.
    """

    name: str
    device: str = ""
    cluster: Cluster | None = None
    plan: Plan | None = None

    @property
    def devices(self) -> tuple[str, ...]:
        """The names of the devices that it takes."""
        return (self.device,) if self.plan is None else tuple(self.plan.devices_used)


def targets_of(devices: DevicesLike) -> tuple[Target, ...]:
    """Targets for what people write."""
    if isinstance(devices, (str, Plan)):
        devices = [devices]
    entries = [devices] if isinstance(devices, Cluster) else list(devices)
    found: list[Target] = []
    for entry in entries:
        if isinstance(entry, Plan):
            found.append(Target("+".join(entry.devices_used), plan=entry, cluster=entry.cluster))
        elif isinstance(entry, Cluster):
            found += [Target(name, name, entry) for name in entry.names]
        elif isinstance(entry, str):
            found.append(Target(entry, entry))
        else:
            raise TypeError(
                f"a device of type {type(entry).__name__}: it takes names such as 'cuda:0', a "
                "baechi.Cluster, or a baechi.Plan"
            )
    faults = _faults(found)
    if faults:
        raise RecordError("these devices cannot work beside each other:", tuple(faults))
    return tuple(found)


def one_target(device: DeviceLike) -> Target:
    """The target of a scheduler for one device."""
    found = targets_of([device])
    if len(found) > 1:
        raise RecordError(
            f"one device is asked for, and the cluster has {len(found)}: {', '.join(t.name for t in found)}; "
            "HybridScheduler takes several"
        )
    return found[0]


def _faults(targets: Sequence[Target]) -> list[str]:
    if not targets:
        return ["there is none"]
    faults = []
    used = [device for target in targets for device in target.devices]
    twice = sorted({device for device in used if used.count(device) > 1})
    faults += [f"{device} is there twice" for device in twice]
    real = [
        device
        for target in targets
        for device in target.devices
        if target.cluster is None or not target.cluster.emulated
    ]
    cpus = [device for device in real if device.partition(":")[0] == "cpu"]
    if len(cpus) > 1 and not twice:
        faults.append(
            f"{' and '.join(cpus)} are one CPU, whose threads one model uses already; if they are emulated, "
            "give their baechi.Cluster"
        )
    for device in real:
        kind = device.partition(":")[0]
        indexed = [other for other in real if other.startswith(f"{kind}:")]
        if kind == device and indexed and kind != "cpu":
            faults.append(f"{device!r} says no index, and {indexed[0]!r} may be the same device")
    return faults
