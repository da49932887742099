"""A plan's report by host: how busy each machine is, and what goes between machines."""

from records.pipeline.chains import chain

import baechi
from baechi import Cluster, Link, Plan
from baechi.report.html.page import to_html
from baechi.report.tables import hosts
from baechi.report.text import to_text


def planned(cluster: Cluster) -> Plan:
    """A chain of four layers, of a second forward and two backward, on every device one."""
    graph = chain([(1.0, 2.0)] * 4, size=1024)
    names = list(graph.placed())
    return Plan.from_device_map(graph, cluster, dict(zip(names, cluster.names, strict=True)))


def test_hosts_and_what_goes_between_them() -> None:
    """A step of twelve seconds, in which each device works for three; one tensor each way."""
    cluster = Cluster.parse("2x(2xA100-40GB)", link=Link(0.0, 1e12))
    plan = planned(cluster)
    busy, between = hosts(plan, plan.timeline)
    assert busy.rows == (("host0", "2 of 2", "25 %"), ("host1", "2 of 2", "25 %"))
    assert between.rows == (("host0 > host1", "1", "1.00 KiB"), ("host1 > host0", "1", "1.00 KiB"))
    for made in (plan, baechi.pipeline(plan, 2)):
        text = str(made)
        assert "Between hosts" in text and "host0 > host1" in text
    assert "Between hosts" in to_html(plan)


def test_one_host_has_no_tables() -> None:
    plan = planned(Cluster.uniform(4))
    assert hosts(plan, plan.timeline) == []
    assert "Between hosts" not in to_text(plan)


def test_of_many_hosts_the_busiest_are_shown() -> None:
    """Twelve of twenty; what is left out is counted."""
    cluster = Cluster.parse("20x(1xA100-40GB)", link=Link(0.0, 1e12))
    graph = chain([(1.0, 2.0)] * 20, size=1024)
    places = dict(zip(graph.placed(), cluster.names, strict=True))
    plan = Plan.from_device_map(graph, cluster, places)
    busy, between = hosts(plan, plan.timeline)
    assert (len(busy.rows), len(between.rows)) == (12, 12)
    assert busy.note.endswith("And 8 more that compute less.")
    assert between.note == "And 26 more with fewer bytes."
