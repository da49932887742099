"""What the driver says becomes a cluster; links that were measured before are found again."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest
from backend.real.fake_driver import Card, FakeDriver

import baechi
from baechi import Cluster, Device, Link
from baechi.backend.real.discover import discover
from baechi.backend.real.link_cache import cache_file, keep
from baechi.measure import links
from baechi.records.cluster import HOST
from baechi.records.datasheet import usual_link
from baechi.records.device import HostCosts

GB = 10**9
RESERVED = 80 * GB * 6 // 100
"""Of a card with 80 GB."""


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees what this machine's user measured."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def two(**changes: object) -> FakeDriver:
    return FakeDriver([Card(identity="one"), Card(free_bytes=20 * GB, identity="other")], **changes)


def test_cards() -> None:
    """Names, kinds, rates by datasheet, free memory less the reserve; the host has links of its own."""
    cluster = discover(driver=two())
    assert cluster.names == ("cuda:0", "cuda:1") and not cluster.emulated
    assert [d.kind for d in cluster.devices] == ["A100-80GB"] * 2
    assert [d.memory_bytes for d in cluster.devices] == [70 * GB - RESERVED, 20 * GB - RESERVED]
    assert cluster.link_between("cuda:0", "cuda:1") == usual_link("A100-80GB")
    assert cluster.link_between(HOST, "cuda:1").bytes_per_s < usual_link("A100-80GB").bytes_per_s
    assert cluster.host == HostCosts.usual()


def test_cards_of_other_kinds() -> None:
    """Cards that nobody has a datasheet of, or of two kinds, have no usual link."""
    driver = FakeDriver([Card("NVIDIA H200"), Card("A card of the future")])
    cluster = discover(driver=driver)
    assert [d.kind for d in cluster.devices] == ["H200", "A card of the future"]
    assert not cluster.devices[1].flops_per_s and cluster.link == Link()


def test_cards_that_do_not_see_each_other() -> None:
    """Without peer access copies go through the host, which takes twice."""
    link = discover(driver=two(peers=False)).link_between("cuda:0", "cuda:1")
    assert not link.peer and link.bytes_per_s == Link().bytes_per_s / 2


def test_a_card_in_parts() -> None:
    """Equal parts of the memory; within a card copies run at half of what its memory gives."""
    cluster = discover(split=2, driver=two())
    assert cluster.names == ("cuda:0/0", "cuda:0/1", "cuda:1/0", "cuda:1/1")
    assert [d.memory_bytes for d in cluster.devices[:2]] == [(70 * GB - RESERVED) // 2] * 2
    within = cluster.link_between("cuda:0/0", "cuda:0/1")
    assert within.bytes_per_s == cluster.devices[0].bytes_per_s / 2
    assert cluster.link_between("cuda:0/0", "cuda:1/1") == usual_link("A100-80GB")


def test_the_cpu_beside() -> None:
    """The CPU is a device if it is given memory; nothing travels between it and the host."""
    cluster = discover(cpu="8GiB", driver=two())
    assert cluster.names == ("cuda:0", "cuda:1", "cpu")
    assert cluster.device("cpu").memory_bytes == 8 * 2**30 and cluster.device("cpu").kind == "CPU"
    assert cluster.link_between(HOST, "cpu").latency_s == 0
    assert cluster.link_between("cpu", "cuda:0") == cluster.link_between(HOST, "cuda:0")


@pytest.mark.parametrize(
    ("reserve", "left_bytes"), [(0.25, 50 * GB), (5 * GB, 65 * GB), ("10GB", 60 * GB), (0, 70 * GB)]
)
def test_reserves(reserve: float | int | str, left_bytes: int) -> None:
    """A fraction of all memory, or bytes; from what is free, and never below nothing."""
    cluster = discover(reserve=reserve, driver=FakeDriver([Card(), Card(free_bytes=1000)]))
    assert [device.memory_bytes for device in cluster.devices] == [left_bytes, 0 if reserve else 1000]


@pytest.mark.parametrize("reserve", [1.0, -0.1, True, "much", -5])
def test_wrong_reserves(reserve: float | int | str) -> None:
    """It is a fraction below 1, or a size."""
    with pytest.raises(ValueError, match=f"{reserve}"):
        discover(reserve=reserve, driver=two())


@pytest.mark.parametrize(
    ("reported", "kind"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100-80GB"),
        ("NVIDIA A100 80GB PCIe", "A100-80GB-PCIe"),
        ("NVIDIA A100-PCIE-40GB", "A100-40GB-PCIe"),
        ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
        ("Tesla V100-SXM2-32GB", "V100-32GB"),
        ("Tesla V100-SXM2-16GB", "V100-16GB"),
        ("Tesla V100-PCIE-32GB", "V100-32GB-PCIe"),
        ("Tesla V100-PCIE-16GB", "V100-16GB-PCIe"),
        ("NVIDIA H100 80GB HBM3", "H100-80GB"),
        ("NVIDIA H100 PCIe", "H100-PCIe"),
        ("NVIDIA H100 NVL", "H100-NVL"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA H200 NVL", "H200-NVL"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA GeForce RTX 5090", "RTX-5090"),
        ("NVIDIA GeForce RTX 5070", "RTX-5070"),
        ("NVIDIA GeForce RTX 5070 Ti", "RTX-5070-Ti"),
        ("NVIDIA GeForce RTX 3090 Ti", None),
        ("NVIDIA GeForce RTX 5090 Laptop GPU", None),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", None),
        ("NVIDIA L40", None),
    ],
)
def test_names_of_cards(reported: str, kind: str | None) -> None:
    """The datasheet is that of the bus and the variant, or none."""
    (device,) = discover(driver=FakeDriver([Card(reported)])).devices
    assert device.kind == (kind or reported)
    assert bool(device.flops_per_s) == (kind is not None)
    if kind and kind.endswith("PCIe"):
        assert usual_link(kind).bytes_per_s <= 64e9


@pytest.mark.parametrize("split", [0, -1, 1.5, True])
def test_wrong_splits(split: int) -> None:
    """A card has a whole number of parts."""
    with pytest.raises(ValueError, match="at least 1"):
        discover(split=split, driver=two())


def test_no_card() -> None:
    """The cure is named."""
    with pytest.raises(baechi.BaechiError, match=r"Cluster.virtual\(2\)"):
        discover(driver=FakeDriver())


# --- links that were measured before -------------------------------------------------------------


def test_measured_links_are_found_again() -> None:
    """On the same cards in the same order and parts, and nowhere else."""
    fast = Link(1e-6, 123e9, residual=0.01)
    keep(replace(discover(driver=two()), links={("cuda:0", "cuda:1"): fast}, launch_s=7e-6), two())
    assert discover(driver=two()).link_between("cuda:0", "cuda:1") == fast
    assert discover(driver=two()).link_between(HOST, "cuda:1") == Link()
    assert discover(driver=two()).launch_s == 7e-6
    swapped = FakeDriver(list(reversed(two().cards)))
    assert discover(driver=swapped).link_between("cuda:0", "cuda:1") == usual_link("A100-80GB")
    assert discover(split=2, driver=two()).link_between("cuda:0/0", "cuda:1/0") == usual_link("A100-80GB")


def test_a_broken_file_is_no_obstacle(caplog: pytest.LogCaptureFixture) -> None:
    """It is named, and links are guessed."""
    path = keep(discover(driver=two()), two())
    path.write_text("{")
    with caplog.at_level(logging.WARNING, "baechi"):
        assert discover(driver=two()).link_between("cuda:0", "cuda:1") == usual_link("A100-80GB")
    assert str(path) in caplog.messages[0]


def test_measuring_saves_when_asked(tmp_path: Path) -> None:
    """In the user's cache folder, or in a file; emulated links are nobody's machine's."""
    cluster = Cluster(tuple(Device(f"cpu/{i}", "CPU", memory_bytes=2**20) for i in range(2)))
    measured = links(cluster, sizes=[1024, 65536], rounds=1, save=True)
    assert Cluster.load(cache_file(cluster)).links == measured.links
    assert cache_file(cluster).parent == tmp_path / "baechi"
    links(cluster, sizes=[1024, 65536], rounds=1, save=tmp_path / "here.json")
    assert ("cpu/0", "cpu/1") in Cluster.load(tmp_path / "here.json").links
    with pytest.raises(ValueError, match="give save= a path"):
        links(Cluster.virtual(2), save=True)
