"""A cluster is checked when built, made from datasheets, and kept in files."""

from collections.abc import Callable

import pytest

from baechi.errors import RecordError
from baechi.records import Cluster, Device, HostCosts, Link
from baechi.records.datasheet import datasheet, known_kinds, usual_link
from baechi.units import format_bytes, parse_bytes


def test_virtual_and_uniform() -> None:
    """What is given wins over the datasheet that `like` names."""
    cluster = Cluster.virtual(2, memory="1GiB", like="L4")
    assert cluster.names == ("cpu:0", "cpu:1") and cluster.emulated
    assert {d.memory_bytes for d in cluster.devices} == {2**30}
    assert cluster.link_between("cpu:0", "cpu:1") == usual_link("L4")
    planned = Cluster.uniform(3, link=Link(1e-3, 1e9))
    assert not planned.emulated and planned.device("device:2").memory_bytes == 80_000_000_000


def test_memory_by_device() -> None:
    """Unequal devices: one size each."""
    assert [d.memory_bytes for d in Cluster.virtual(2, memory=["1KiB", 7]).devices] == [1024, 7]
    with pytest.raises(ValueError, match="3 memory sizes for 2 devices"):
        Cluster.virtual(2, memory=[1, 2, 3])


@pytest.mark.parametrize("n", [0, -1, 1.5, True])
def test_wrong_counts(n: int) -> None:
    """A cluster has a whole number of devices, at least one."""
    with pytest.raises(ValueError, match="at least 1"):
        Cluster.virtual(n)


def test_faults_are_gathered() -> None:
    """Double names, unknown ends and odd settings are told together."""
    devices = (Device("a"), Device("a"))
    with pytest.raises(RecordError) as caught:
        Cluster(devices, links={("a", "z"): Link()}, reception="loud", launch_s=-1)  # type: ignore[arg-type]
    assert len(caught.value.faults) == 4


def test_max_memory() -> None:
    """Memory by name or index; 0 leaves a device out, with its links; nonsense is refused."""
    cluster = Cluster((Device("a", memory_bytes=5), Device("b")), links={("a", "b"): Link(1.0)})
    assert cluster.with_memory({"a": "1KiB"}).device("a").memory_bytes == 1024
    assert cluster.with_memory({1: 0, "cpu": "1GiB"}).names == ("a",)
    with pytest.raises(RecordError, match="'c' is no device"):
        cluster.with_memory({"c": 1})


def test_host_costs() -> None:
    """What the runtime takes of the host is kept with the cluster; older files have none."""
    cluster = Cluster((Device("a"),), host=HostCosts.usual())
    assert Cluster.from_json(cluster.to_json()) == cluster and cluster.with_memory({}).host == cluster.host
    body = {key: value for key, value in cluster.body().items() if key != "host"}
    assert Cluster.from_body(body).host is None
    with pytest.raises(RecordError, match="layer_call_s is -1") as caught:
        HostCosts(layer_call_s=-1, transfer_s=float("inf"))
    assert len(caught.value.faults) == 2


def test_round_trip(tmp_path: object) -> None:
    """A cluster comes back from a file as it was."""
    cluster = Cluster(
        (Device("a", "L4", 5, 0.5, {"float32": 1.0}, 2.0), Device("b")), {("a", "b"): Link(1.0, 2.0)}
    )
    cluster.save(f"{tmp_path}/c.json")
    assert Cluster.load(f"{tmp_path}/c.json") == cluster
    with pytest.raises(FileNotFoundError, match="no cluster file"):
        Cluster.load("nowhere")


def test_every_datasheet_makes_a_device() -> None:
    """Each known kind has memory, rates and a link."""
    assert {
        "H200",
        "H100-80GB",
        "A100-80GB",
        "A100-40GB",
        "L4",
        "RTX-4090",
        "RTX-3090",
        "V100-32GB",
        "CPU",
    } <= set(known_kinds())
    for kind in known_kinds():
        device = Device("d", kind, **datasheet(kind))
        assert (
            device.memory_bytes > 0 and device.flops_per_s["float32"] > 0 and usual_link(kind).bytes_per_s > 0
        )
    with pytest.raises(ValueError, match="H200"):
        datasheet("H20000")


@pytest.mark.parametrize("make", [Cluster.uniform, Cluster.virtual])
def test_reserves(make: Callable[..., Cluster]) -> None:
    """A fraction or bytes are left free of each device; nothing unless said."""
    whole_bytes = datasheet("L4")["memory_bytes"]
    for reserve, left_bytes in (
        (0, whole_bytes),
        (0.06, whole_bytes * 94 // 100),
        ("1GB", whole_bytes - 10**9),
        (5, whole_bytes - 5),
    ):
        assert {d.memory_bytes for d in make(2, like="L4", reserve=reserve).devices} == {left_bytes}
    assert {d.memory_bytes for d in make(2).devices} == {datasheet("A100-80GB")["memory_bytes"]}
    for wrong in (1.0, -0.5, True, float("nan"), "a lot"):
        with pytest.raises(ValueError, match=str(wrong)):
            make(2, reserve=wrong)
    with pytest.raises(ValueError, match="more than a device has"):
        make(2, like="L4", reserve="25GB")


def test_reserves_of_unequal_devices() -> None:
    """Each leaves its own part."""
    cluster = Cluster.virtual(2, memory=["1GB", "2GB"], reserve=0.1)
    assert [device.memory_bytes for device in cluster.devices] == [9 * 10**8, 18 * 10**8]


@pytest.mark.parametrize(
    "size, expected", [("16GiB", 2**34), ("1.5 KB", 1500), ("4_000", 4000), (7, 7), ("0", 0)]
)
def test_sizes(size: int | str, expected: int) -> None:
    """Sizes are bytes or text with a unit."""
    assert parse_bytes(size) == expected


@pytest.mark.parametrize("size", ["", "GiB", "10 XB", -1, float("nan"), True])
def test_no_sizes(size: int | str) -> None:
    """What is no size says so, with the units that there are."""
    with pytest.raises(ValueError, match="no size"):
        parse_bytes(size)


def test_sizes_for_people() -> None:
    """Bytes are written with a binary unit."""
    assert [format_bytes(n) for n in (0, 1023, 1536, 3 * 2**30)] == ["0 B", "1023 B", "1.50 KiB", "3.00 GiB"]
