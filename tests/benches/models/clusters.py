"""The clusters that placements are compared on: A100s by their datasheet, and one of half their worth.

How much memory they have depends on the model: each roomy device could hold it (but for a half one),
no tight device could.
"""

from dataclasses import dataclass, replace
from typing import Literal

from baechi.records.cluster import HOST, Cluster
from baechi.records.datasheet import datasheet, usual_link
from baechi.records.device import Device

FULL = Device("full", kind="A100-80GB", **datasheet("A100-80GB"))
HALF = replace(
    FULL,
    name="half",
    kind="half an A100-80GB",
    memory_bytes=FULL.memory_bytes // 2,
    flops_per_s={dtype: rate / 2 for dtype, rate in FULL.flops_per_s.items()},
    bytes_per_s=FULL.bytes_per_s / 2,
)
LINKS = {"NVLink": usual_link("A100-80GB"), "PCIe": usual_link("L4")}

_ROOMY = 1.2
"""Memory of a full device, in models."""

_TIGHT = 1.8
"""Memory of all devices together, in models, if all were full."""


@dataclass(frozen=True)
class Setting:
    """A cluster, but for the size of its memory.

    Args:
        devices: how many.
        link: by what they are joined; the host always by PCIe.
        equal: whether the last one is like the others; else it has half their memory and speed.
        roomy: whether one of them could hold the model.
    """

    devices: int
    link: Literal["NVLink", "PCIe"]
    equal: bool
    roomy: bool

    def __str__(self) -> str:
        equal, roomy = "equal" if self.equal else "unequal", "roomy" if self.roomy else "tight"
        return f"{self.devices} {equal}, {self.link}, {roomy}"

    def cluster(self, needed_bytes: int) -> Cluster:
        """The cluster for a model.

        Args:
            needed_bytes: what the model needs on one device.
        """
        kinds = [FULL] * (self.devices - 1) + [FULL if self.equal else HALF]
        shares = [kind.memory_bytes / FULL.memory_bytes for kind in kinds]
        each_bytes = needed_bytes * (_ROOMY if self.roomy else _TIGHT / self.devices)
        devices = [
            replace(kind, name=f"device:{number}", memory_bytes=round(each_bytes * share))
            for number, (kind, share) in enumerate(zip(kinds, shares, strict=True))
        ]
        hosts = {pair: LINKS["PCIe"] for d in devices for pair in ((HOST, d.name), (d.name, HOST))}
        return Cluster(tuple(devices), hosts, LINKS[self.link])


SETTINGS = (
    Setting(2, "NVLink", equal=True, roomy=True),
    Setting(2, "PCIe", equal=True, roomy=False),
    Setting(2, "NVLink", equal=False, roomy=False),
    Setting(2, "PCIe", equal=False, roomy=True),
    Setting(4, "NVLink", equal=True, roomy=False),
    Setting(4, "PCIe", equal=True, roomy=True),
    Setting(4, "NVLink", equal=False, roomy=True),
    Setting(4, "PCIe", equal=False, roomy=False),
)
