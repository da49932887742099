"""Links by timed copies."""

from dataclasses import replace

import pytest

import baechi
from baechi import Cluster, Link
from baechi.measure import copies


def test_emulated_links_are_found_again() -> None:
    """What the emulated copies take says what the links are; the host's call is no part of it."""
    fast, slow = Link(1e-6, 300e9), Link(20e-6, 12e9)
    cluster = replace(
        Cluster.virtual(2, memory="64MiB", link=Link(3e-6, 25e9)),
        links={("cpu:0", "cpu:1"): fast, ("host", "cpu:1"): slow},
    )
    measured = baechi.measure.links(cluster, rounds=1)
    assert len(measured.links) == 6
    for pair, link in measured.links.items():
        given = cluster.link_between(*pair)
        assert link.latency_s == pytest.approx(given.latency_s, rel=1e-6)
        assert link.bytes_per_s == pytest.approx(given.bytes_per_s, rel=1e-6)
        assert link.residual < 1e-6


def test_a_line_through_noisy_times() -> None:
    """The residual is the farthest that a copy lies from the line, as a part of its time."""
    sizes = [1000, 10_000, 100_000, 1_000_000]
    times_s = [1e-5 + size / 1e9 for size in sizes]
    link = copies.fit(sizes, times_s)
    assert (link.latency_s, link.bytes_per_s) == (pytest.approx(1e-5), pytest.approx(1e9))
    link = copies.fit(sizes, [*times_s[:3], times_s[3] * 1.5])
    assert 0.1 < link.residual < 0.5
    assert copies.fit([1, 2], [1.0, 1.0]).latency_s >= 0


def test_measured_links_are_kept(tmp_path: object) -> None:
    """A cluster with measured links goes to a file and back."""
    cluster = baechi.measure.links(Cluster.virtual(2, memory="1MiB"), sizes=[1024, 65536], rounds=1)
    path = f"{tmp_path}/cluster.json"
    cluster.save(path)
    assert Cluster.load(path).links == cluster.links


def test_wrong_requests() -> None:
    """One size makes no line; devices of other machines cannot be measured."""
    with pytest.raises(ValueError, match="1 sizes"):
        baechi.measure.links(Cluster.virtual(2), sizes=[1024])
    with pytest.raises(ValueError, match="no line"):
        baechi.measure.links(Cluster.virtual(2, memory=4096), sizes=[1024, 1 << 20])
    with pytest.raises(baechi.BaechiError, match="device:0 is not in this machine"):
        baechi.measure.links(Cluster.uniform(2))
