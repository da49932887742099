"""When transfers run, to the second: a link sends a float a second."""

import pytest
import torch
from backend.virtual.machine.by_hand import (
    DEVICES,
    after,
    cluster_of,
    compute,
    copy,
    host_s,
    on,
    row,
    rows,
    side,
    zeros,
)

from baechi.backend.transfer import transfer


def test_a_transfer_takes_what_its_link_says() -> None:
    """A transfer lasts latency and bytes; an empty one takes the latency."""
    with cluster_of(latency_s=0.5):
        x, y = zeros("cpu:0", 3), torch.empty(0, device="cpu:0")
        x.to("cpu:1")
        assert row("copy") == ("copy", "cpu:0>cpu:1", 3.0, 6.5)
        y.to("cpu:1")
        assert rows()[-1] == ("copy", "cpu:0>cpu:1", 6.5, 7.0)


def test_a_view_sends_its_own_bytes() -> None:
    """What travels is what a view shows, not the storage behind it."""
    with cluster_of():
        zeros("cpu:0", 10)[2:5].to("cpu:1")
        assert row("copy") == ("copy", "cpu:0>cpu:1", 10.0, 13.0)


def test_transfers_run_beside_compute() -> None:
    """On tx and rx a transfer overlaps what computes on both ends; only its reader waits for it."""
    with cluster_of():
        x = zeros("cpu:0", 3)
        y = transfer(x, DEVICES, "cpu:1")
        torch.ones(9, device="cpu:0")
        y + 1
        with on(side("cpu:1")) as aside:
            torch.full((5,), 1.0, device="cpu:1")
        after(compute("cpu:1"), aside)
        assert rows() == [
            ("zeros", "cpu:0", 0.0, 3.0),
            ("full", "cpu:1", 0.0, 5.0),
            ("copy", "cpu:0>cpu:1", 3.0, 6.0),
            ("ones", "cpu:0", 3.0, 12.0),
            ("add", "cpu:1", 6.0, 12.0),
        ]


def test_plain_to_holds_up_both_ends() -> None:
    """`x.to` runs on the computing streams: it comes after what they do, and they go on after it."""
    with cluster_of():
        x = zeros("cpu:0", 3)
        torch.ones(5, device="cpu:1")
        y = x.to("cpu:1")
        torch.full((1,), 1.0, device="cpu:0")
        y + 1
        assert rows() == [
            ("zeros", "cpu:0", 0.0, 3.0),
            ("ones", "cpu:1", 0.0, 5.0),
            ("copy", "cpu:0>cpu:1", 5.0, 8.0),
            ("full", "cpu:0", 8.0, 9.0),
            ("add", "cpu:1", 8.0, 14.0),
        ]


def test_copy_into_another_device_is_a_transfer() -> None:
    """`y.copy_(x)` from one device to another runs on both computing streams."""
    with cluster_of():
        x, y = zeros("cpu:0", 3), torch.empty(3, device="cpu:1")
        y.copy_(x)
        y + 1
        assert rows()[1:] == [("copy_", "cpu:0>cpu:1", 3.0, 6.0), ("add", "cpu:1", 6.0, 12.0)]


def test_the_host_issues_transfers() -> None:
    """A transfer costs the host one launch, and starts when it was issued."""
    with cluster_of(launch_s=10.0):
        copy(zeros("cpu:0", 3), "cpu:1")
        assert host_s() == 20.0
        assert row("copy") == ("copy", "cpu:0>cpu:1", 20.0, 23.0)


RECEPTIONS = {
    "serial": [("copy", "cpu:0>cpu:2", 4.0, 8.0), ("copy", "cpu:1>cpu:2", 8.0, 12.0)],
    "free": [("copy", "cpu:0>cpu:2", 4.0, 8.0), ("copy", "cpu:1>cpu:2", 4.0, 8.0)],
}


@pytest.mark.parametrize("reception", RECEPTIONS)
def test_reception(reception: str) -> None:
    """A device receives one transfer at a time if reception is serial, else one from each."""
    with cluster_of(3, reception=reception):
        x, y = zeros("cpu:0", 4), zeros("cpu:1", 4)
        received = [copy(tensor, "cpu:2") for tensor in (x, y)]
        assert [row for row in rows() if row[0] == "copy"] == RECEPTIONS[reception]
        assert len(received) == 2


@pytest.mark.parametrize("reception", RECEPTIONS)
def test_one_pair_sends_one_at_a_time(reception: str) -> None:
    """Two transfers over one link follow each other, also on other streams than tx and rx."""
    with cluster_of(2, reception=reception):
        x = zeros("cpu:0", 4)
        first = copy(x, "cpu:1")
        with on(side("cpu:0")) as tx, on(side("cpu:1")) as rx:
            after(tx, compute("cpu:0"))
            second = x.to("cpu:1")
        after(compute("cpu:0"), tx)
        after(compute("cpu:1"), rx)
        first + second
        assert rows()[1:] == [
            ("copy", "cpu:0>cpu:1", 4.0, 8.0),
            ("copy", "cpu:0>cpu:1", 8.0, 12.0),
            ("add", "cpu:1", 12.0, 24.0),
        ]


def test_a_device_sends_to_several_at_once() -> None:
    """Transfers from one device to two others overlap, and so do the two directions of a link."""
    with cluster_of(3):
        x, y = zeros("cpu:0", 4), zeros("cpu:1", 4)
        made = {place: DEVICES.record(compute(place)) for place in ("cpu:0", "cpu:1")}
        for tensor, source, target in ((x, "cpu:0", "cpu:1"), (x, "cpu:0", "cpu:2"), (y, "cpu:1", "cpu:0")):
            DEVICES.wait(DEVICES.transfer_streams(source, target)[0], made[source])
            copy(tensor, target, ordered=False)
        assert rows()[2:] == [
            ("copy", "cpu:0>cpu:1", 4.0, 8.0),
            ("copy", "cpu:0>cpu:2", 4.0, 8.0),
            ("copy", "cpu:1>cpu:0", 4.0, 8.0),
        ]


def test_who_is_ready_first_is_received_first() -> None:
    """Of two transfers to one device the one that can leave earlier does, in whatever order issued."""
    with cluster_of(3):
        x, y = zeros("cpu:0", 9), zeros("cpu:1", 4)
        received = [copy(tensor, "cpu:2") for tensor in (x, y)]
        assert [row for row in rows() if row[0] == "copy"] == [
            ("copy", "cpu:1>cpu:2", 4.0, 8.0),
            ("copy", "cpu:0>cpu:2", 9.0, 18.0),
        ]
        assert len(received) == 2


def test_uploads_do_not_hold_up_the_host() -> None:
    """A tensor of the host travels to a device while the host goes on; uploads queue there."""
    with cluster_of(launch_s=1.0, latency_s=0.5):
        x, y = torch.ones(4).to("cpu:0"), torch.ones(2).to("cpu:0")
        z = torch.ones(2).to("cpu:1")
        assert host_s() == 3.0
        x[:2] + y
        assert rows() == [
            ("copy", "host>cpu:0", 1.0, 5.5),
            ("copy", "host>cpu:1", 3.0, 5.5),
            ("copy", "host>cpu:0", 5.5, 8.0),
            ("add", "cpu:0", 8.0, 14.0),
        ]
        assert z.device == torch.device("cpu", 1)


def test_the_host_waits_for_downloads() -> None:
    """A download starts when its tensor is made, and the host goes on when it has arrived."""
    with cluster_of(launch_s=1.0, latency_s=0.5):
        zeros("cpu:0", 4).cpu()
        assert host_s() == 9.5
        zeros("cpu:1", 1)
        assert rows() == [
            ("zeros", "cpu:0", 1.0, 5.0),
            ("copy", "cpu:0>host", 5.0, 9.5),
            ("zeros", "cpu:1", 10.5, 11.5),
        ]


def test_made_on_the_host_and_brought() -> None:
    """`torch.tensor(device=)` is an upload; `torch.zeros(device=)` is made in place."""
    with cluster_of():
        torch.tensor([1.0, 2.0], device="cpu:1")
        zeros("cpu:1", 2)
        assert rows() == [("copy", "host>cpu:1", 0.0, 2.0), ("zeros", "cpu:1", 2.0, 4.0)]
