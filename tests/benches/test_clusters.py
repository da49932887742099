"""The clusters that placements are compared on."""

from baechi.records.cluster import HOST
from benches.models.clusters import LINKS, SETTINGS, Setting


def test_memory() -> None:
    """A full roomy device holds the model, a tight one does not, all tight ones together do."""
    for setting in SETTINGS:
        sizes = [device.memory_bytes for device in setting.cluster(1000).devices]
        assert len(sizes) == setting.devices
        assert (max(sizes) > 1000) == setting.roomy
        assert sum(sizes) > 1300


def test_unequal() -> None:
    """The last device has half the memory and half the rates of the others."""
    first, last = Setting(2, "PCIe", equal=False, roomy=True).cluster(1000).devices
    assert last.memory_bytes * 2 == first.memory_bytes
    assert last.bytes_per_s * 2 == first.bytes_per_s
    assert {dtype: rate * 2 for dtype, rate in last.flops_per_s.items()} == dict(first.flops_per_s)
    assert first.kind != last.kind


def test_links() -> None:
    """Devices are joined by the link, and the host always by PCIe."""
    cluster = Setting(2, "NVLink", equal=True, roomy=True).cluster(1000)
    assert cluster.link_between("device:0", "device:1") == LINKS["NVLink"]
    assert cluster.link_between(HOST, "device:1") == LINKS["PCIe"]


def test_all_kinds() -> None:
    """Two and four devices, both links, equal and unequal, each combination once; half roomy."""
    assert len({(s.devices, s.link, s.equal) for s in SETTINGS}) == len(SETTINGS) == 8
    assert sum(s.roomy for s in SETTINGS) == 4
