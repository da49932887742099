"""Streams that wait for events."""

import torch
from backend.virtual.machine.by_hand import DEVICES, after, cluster_of, compute, on, row, rows, side, zeros


def test_a_stream_waits_for_an_event() -> None:
    """What comes after an event starts after what was before it, and not after what came later."""
    with cluster_of():
        zeros("cpu:0", 5)
        event = DEVICES.record(compute("cpu:0"))
        torch.ones(20, device="cpu:0")
        torch.full((1,), 1.0, device="cpu:1")  # before the wait
        DEVICES.wait(compute("cpu:1"), event)
        torch.arange(2.0, device="cpu:1")
        zeros("cpu:1", 3)
        assert [row for row in rows() if row[1] == "cpu:1"] == [
            ("full", "cpu:1", 0.0, 1.0),
            ("arange", "cpu:1", 5.0, 7.0),
            ("zeros", "cpu:1", 7.0, 10.0),
        ]


def test_an_event_passes_on_what_its_stream_waits_for() -> None:
    """An event on a stream that waits, with nothing of its own, comes after what it waits for."""
    with cluster_of(3):
        zeros("cpu:0", 5)
        zeros("cpu:2", 7)
        after(compute("cpu:1"), compute("cpu:0"))
        after(compute("cpu:1"), compute("cpu:2"))
        aside = side("cpu:0")
        after(aside, compute("cpu:1"))
        with on(aside):
            torch.ones(1, device="cpu:0")
        after(compute("cpu:0"), aside)
        torch.full((1,), 1.0, device="cpu:0")
        assert row("ones") == ("ones", "cpu:0", 7.0, 8.0)
        assert row("full") == ("full", "cpu:0", 8.0, 9.0)


def test_an_event_of_an_idle_stream_has_happened() -> None:
    """An event on a stream without work holds nobody up."""
    with cluster_of():
        after(compute("cpu:1"), compute("cpu:0"))
        zeros("cpu:1", 2)
        assert row("zeros") == ("zeros", "cpu:1", 0.0, 2.0)
