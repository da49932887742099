"""Placers by name, and as functions."""

from functools import partial
from typing import Any

import pytest
from place.graphs import chain, cluster_of

from baechi.place import find
from baechi.place.placers.m_etf import m_etf
from baechi.place.placers.m_sct import m_sct
from baechi.place.placers.random import RandomPlacer
from baechi.records import Cluster, LayerGraph, Plan


def on_the_last(graph: LayerGraph, cluster: Cluster) -> Plan:
    """A user's placer."""
    return Plan(graph, cluster, dict.fromkeys(graph.placed(), cluster.names[-1]))


def test_names() -> None:
    """A name gives its placer; a random one its seed."""
    assert find("m-etf") is m_etf
    assert find("random:7") == RandomPlacer(7)


@pytest.mark.parametrize("name", ["m-atf", "", "random"[:3], "auto"])
def test_unknown_name(name: str) -> None:
    """An unknown name is refused with those that are known."""
    known = "'single', 'm-topo', 'm-etf', 'm-sct', 'chain', 'even', 'round-robin', 'random:SEED'"
    with pytest.raises(ValueError, match=rf"no placer.*{known}"):
        find(name)


@pytest.mark.parametrize("name", ["random", "random:", "random:x", "random:-1", "random:1.5"])
def test_bad_seed(name: str) -> None:
    """A seed that is no whole number is refused with an example."""
    with pytest.raises(ValueError, match=r"needs a seed.*'random:7'"):
        find(name)


def test_user_function() -> None:
    """A function of graph and cluster is a placer, also when an optimizer is given."""
    plan = find(on_the_last)(chain(), cluster_of(999, 999), optimizer="adam")
    assert plan.devices_used == ("d1",)


def test_function_with_optimizer() -> None:
    """A function that takes the optimizer gets it."""
    seen: list[Any] = []

    def placer(graph: LayerGraph, cluster: Cluster, *, optimizer: str | None = None) -> Plan:
        seen.append(optimizer)
        return on_the_last(graph, cluster)

    find(placer)(chain(), cluster_of(999), optimizer="adam")
    assert seen == ["adam"]


@pytest.mark.parametrize(
    ("function", "fault"),
    [
        (lambda graph: None, "too many positional arguments"),
        (lambda graph, cluster, effort: None, "'effort'"),
        (lambda *, graph, cluster: None, "too many positional arguments"),
        (lambda optimizer, graph: None, "multiple values for argument 'optimizer'"),
        (Plan, "'device_of'"),
    ],
)
def test_function_of_something_else(function: Any, fault: str) -> None:
    """A callable that takes something else is refused at once, with what is wrong and how to write it."""
    with pytest.raises(TypeError, match=rf"is no placer.*{fault}.*def placer\(graph, cluster\) -> Plan"):
        find(function)


def test_partial_function() -> None:
    """A placer with some of its parameters chosen is one; so is what does not say how it is called."""
    plan = find(partial(m_sct, threshold=0.5))(chain(), cluster_of(999), optimizer="adam")
    assert plan.placer == "m-sct"
    with pytest.raises(TypeError):
        find(max)(chain(), cluster_of(999))


def test_function_that_returns_no_plan() -> None:
    """What is no plan is refused where it comes from."""
    with pytest.raises(TypeError, match="must return a Plan, not 7"):
        find(lambda graph, cluster: 7)(chain(), cluster_of(999))


def test_no_placer_at_all() -> None:
    """Neither a name nor a function."""
    with pytest.raises(TypeError, match="not 3"):
        find(3)  # type: ignore[arg-type]


def test_unknown_optimizer() -> None:
    """An unknown optimizer is refused with those that are known."""
    with pytest.raises(ValueError, match=r"'lion' is unknown.*'adamw'"):
        find("single")(chain(training=True), cluster_of(999), optimizer="lion")
