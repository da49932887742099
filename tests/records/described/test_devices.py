"""Clusters in one line: kinds and numbers, links by word, memory as text."""

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from baechi.cli.targets import shipped
from baechi.errors import RecordError
from baechi.records import Cluster, Host, Link, files
from baechi.records.datasheet import known_kinds, usual_link


@pytest.mark.parametrize("name", shipped("cluster"))
def test_shipped_clusters(name: str) -> None:
    """They load by their names, and have what their names say."""
    cluster = Cluster.parse(name)
    count = name.split("x")[0]
    assert len(cluster) == (int(count) if count.isdigit() else name.count("-") + ("server" in name) * 2)


@pytest.mark.parametrize("kind", known_kinds())
def test_datasheets(kind: str) -> None:
    """Each entry says memory, rates, a link and where its figures are from, and makes a cluster."""
    entry = files.read("devices", files.profiles_folder() / "devices.json")["devices"][kind]
    assert entry["source"] and entry["flops_per_s"]["float32"] > 0 and entry["link"]["bytes_per_s"] > 0
    cluster = Cluster.parse(f"2x{kind}")
    assert [device.kind for device in cluster.devices] == [kind, kind]
    assert cluster.devices[0].memory_bytes > 2**30 and cluster.link.bytes_per_s > 0


def test_kinds_and_numbers() -> None:
    """Devices of one kind, or of several, joined by the slowest link; named as a plan's devices are."""
    assert Cluster.parse("4xA100-80GB").names == ("device:0", "device:1", "device:2", "device:3")
    mixed = Cluster.parse("1xH100-80GB, 2xRTX-3090")
    assert [(d.name, d.kind) for d in mixed.devices] == [
        ("device:0", "H100-80GB"),
        ("device:1", "RTX-3090"),
        ("device:2", "RTX-3090"),
    ]
    assert mixed.link.bytes_per_s == usual_link("RTX-3090").bytes_per_s < usual_link("H100-80GB").bytes_per_s


@pytest.mark.parametrize(
    "text",
    [
        "1xRTX-4090,2xa100-80gb",
        "1xrtx4090,2xA10080GB",
        "1 x RTX 4090, 2 x A100 80GB",
        "1xrtx-4090,2XA100-80GB",
    ],
)
def test_capitals_and_blanks_do_not_matter(text: str) -> None:
    """The kinds are those of the datasheets, however they were typed."""
    assert [device.kind for device in Cluster.parse(text).devices] == ["RTX-4090", "A100-80GB", "A100-80GB"]
    assert [device.kind for device in Cluster.virtual(like=["l4", "rtx 3090"]).devices] == ["L4", "RTX-3090"]


def test_links_by_word() -> None:
    """As the shipped clusters so called have them; or a rate; or a link."""
    text = "1xRTX-4090,1xRTX-3090"
    assert Cluster.parse(text, link="pcie").link == Cluster.parse("2xRTX-4090-pcie").link
    assert Cluster.parse("2xA100-80GB", link="nvlink").link == Cluster.parse("2xA100-80GB-nvlink").link
    assert Cluster.virtual(2, link="12GB/s").link.bytes_per_s == 12e9
    assert Cluster.uniform(2, link=Link(1.0)).link == Link(1.0)


def test_unlike_devices_are_emulated() -> None:
    """A kind for each; as many as are listed."""
    cluster = Cluster.virtual(like=["A100-40GB", "L4"], memory=["1GiB", 7])
    assert cluster.emulated and cluster.names == ("cpu:0", "cpu:1")
    assert [(d.kind, d.memory_bytes) for d in cluster.devices] == [("A100-40GB", 2**30), ("L4", 7)]
    assert cluster.device("cpu:0").bytes_per_s > cluster.device("cpu:1").bytes_per_s
    with pytest.raises(ValueError, match="like lists 2 kinds for 3 devices"):
        Cluster.virtual(3, like=["L4", "L4"])


def test_memory_has_one_name() -> None:
    """Bytes or text, wherever devices are made."""
    made = (
        Cluster.uniform(2, memory="1GiB"),
        Cluster.virtual(2, memory=2**30),
        Cluster.parse("2xL4", memory="1GiB"),
    )
    assert {device.memory_bytes for cluster in made for device in cluster.devices} == {2**30}


def test_a_file_and_a_cluster(tmp_path: Path) -> None:
    """By its path, as text or not; a cluster is itself."""
    cluster = Cluster.virtual(2)
    cluster.save(tmp_path / "mine.json")
    assert Cluster.parse(tmp_path / "mine.json") == Cluster.parse(str(tmp_path / "mine.json")) == cluster
    assert Cluster.parse(cluster) is cluster


@pytest.mark.parametrize(
    ("text", "options", "error", "message"),
    [
        ("4xTPU", {}, ValueError, "no datasheet of a device 'TPU': known are A100"),
        ("0xL4", {}, ValueError, "at least 1"),
        ("mine", {}, FileNotFoundError, "shipped clusters are: 2xA100-80GB-nvlink"),
        ("", {}, FileNotFoundError, "devices are listed as in '2xA100-80GB'"),
        ("A100-80GBx2", {}, ValueError, "did you mean '1xA100-80GB'"),
        ("A100", {}, ValueError, "did you mean '1xA100-40GB' or '1xA100-80GB'"),
        ("2xA100", {}, ValueError, "no datasheet of a device 'A100': did you mean A100-40GB or A100-80GB"),
        ("cuda:0", {}, ValueError, "say one such as '1xA100-40GB', or 'cuda' for all visible GPUs"),
        ("cuda", {"memory": 3}, ValueError, "say one such as"),
        ("2xL4", {"link": "wire"}, ValueError, "there is no link 'wire': known are 'pcie', 'nvlink'"),
        ("2xL4", {"link": "nvlink"}, ValueError, "L4 is usually joined by PCIe"),
        ("2xL4", {"link": 3}, TypeError, "link is of type int"),
        ("2xL4", {"memory": "much"}, ValueError, "'much' is no size"),
        ("desktop-4090-3090", {"memory": 3}, ValueError, "has its own memory and links"),
        (3, {}, TypeError, "cluster is of type int: it takes a baechi.Cluster or text"),
        ("2x(2xL4),2xL4", {}, ValueError, r"2xL4 is in no host, but others are: write 1x\(2xL4\)"),
        ("2x()", {}, ValueError, "no host: write such as"),
        ("0x(2xL4)", {}, ValueError, "no host: write such as"),
        ("2x(2xTPU)", {}, ValueError, "no datasheet of a device 'TPU'"),
        ("200x(8xL4)", {}, ValueError, "at most 1,024 devices"),
    ],
)
def test_no_cluster(text: str, options: dict[str, str], error: type[Exception], message: str) -> None:
    """What is unknown is told, with what is known."""
    with pytest.raises(error, match=message):
        Cluster.parse(text, **options)  # type: ignore[arg-type]


def test_hosts() -> None:
    """Parentheses are a host: its devices have their usual link, and between hosts there is the network's."""
    cluster = Cluster.parse("2x(4xA100-40GB), 1x(1xL40S,1xL4)", link="50GB/s")
    assert [len(host.devices) for host in cluster.hosts] == [4, 4, 2]
    assert [device.kind for device in cluster.devices[-2:]] == ["L40S", "L4"]
    inside = cluster.link_between("host0/device:0", "host0/device:3")
    assert inside == Cluster.parse("2xA100-40GB").link
    between = cluster.link_between("host0/device:3", "host1/device:0")
    assert between.bytes_per_s == 50e9 == cluster.link_between("host0/device:0", "host").bytes_per_s
    assert Cluster.from_json(cluster.to_json()) == cluster
    assert "3 hosts; between them" in repr(cluster)


def test_a_part_has_its_hosts() -> None:
    """A cluster with fewer devices has the hosts of these, whichever way it was made."""
    cluster = Cluster.parse("2x(2xL4)")
    kept = ("host0/device:1", "host1/device:0")
    for some in (cluster.part(kept), cluster.with_memory({"host0/device:0": 0, "host1/device:1": 0})):
        assert some.names == kept and [host.devices for host in some.hosts] == [(name,) for name in kept]
        assert some.link_between(*kept) == cluster.link
    with pytest.raises(RecordError, match="no devices"):
        cluster.part([])


def test_devices_of_ranks() -> None:
    """Each device gets a rank in its name; links and hosts stay. What is of ranks already stays as it is."""
    plain = Cluster.parse("2x(2xL4)", link="50GB/s", one_card=True)
    slow = replace(plain, links={(plain.names[0], "host"): Link(0.0, 1e9), plain.names[:2]: Link(0.0, 2e9)})
    for before in (plain, slow):
        cluster = Cluster.parse(before, ranks=True)
        assert cluster.names == ("rank0/device:0", "rank1/device:1", "rank2/device:0", "rank3/device:1")
        assert cluster.ranks == (0, 1, 2, 3) and cluster.reception == "free"
        pairs = [("host", "host"), *zip(before.names, cluster.names, strict=True)]
        for (a, new_a), (b, new_b) in product(pairs, repeat=2):
            assert cluster.link_between(new_a, new_b) == before.link_between(a, b)
        assert [host.name for host in cluster.hosts] == ["host0", "host1"] and cluster.hosts[1].one_card
        assert Cluster.parse(cluster, ranks=True) is cluster
    assert Cluster.parse("2x(2xL4)", link="50GB/s", one_card=True, ranks=True) == Cluster.parse(
        plain, ranks=True
    )
    assert Cluster.parse("desktop-4090-3090", ranks=True).ranks == (0, 1)


def test_malformed_hosts() -> None:
    """A device in two hosts or in none, a host of no device, one that the cluster does not have."""
    devices = Cluster.uniform(2).devices
    both = Host("a", ("device:0", "device:1"))
    for hosts, why in (
        ((both, Host("b", ("device:1",))), "'device:1' is in two hosts"),
        ((Host("a", ("device:0",)),), "'device:1' is in no host"),
        ((both, Host("b", ("cuda:7",))), "has 'cuda:7', no device"),
        ((Host("a", ("device:0",)), Host("a", ("device:1",))), "two hosts are named 'a'"),
    ):
        with pytest.raises(RecordError, match=why):
            Cluster(devices, hosts=hosts)
    with pytest.raises(RecordError, match="no devices"):
        Host("a", ())
