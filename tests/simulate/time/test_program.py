"""What the host does, worked out by hand: each kernel and transfer takes it a second to issue."""

from itertools import pairwise
from typing import Any

from place.graphs import FREE, cluster_of, graph_of

from baechi.records import LayerGraph, Plan, Timeline
from baechi.simulate import simulate

KERNEL = {"forward_s": 0.5, "backward_s": 0.5, "host_forward_s": 1, "host_backward_s": 1}


def play(graph: LayerGraph, order: str = "", **device_of: str) -> Timeline:
    cluster = cluster_of(99, 99, link=FREE, launch_s=1)
    return simulate(Plan(graph, cluster, device_of, tuple(order)))


def starts(timeline: Timeline, kind: str) -> dict[tuple[str, str, str], float]:
    return {(s.layer, s.where, s.phase): s.start_s for s in timeline.spans if s.kind == kind}


def chain(**last: Any) -> LayerGraph:
    """Three layers, the first read by the others."""
    nodes = {"a": dict(KERNEL), "b": dict(KERNEL), "c": {**KERNEL, **last}}
    return graph_of(nodes, [("a", "b", 4), ("a", "c", 4)], training="losses" in last)


def test_sent_ahead_or_on_demand() -> None:
    """Ahead, a tensor is sent before the next kernel is issued; on demand, right before its reader."""
    graph = chain()
    assert starts(play(graph, a="d0", b="d0", c="d1"), "transfer")["a", "d0>d1", "forward"] == 1
    graph.edges["a", "c"]["on_demand"] = True
    timeline = play(graph, a="d0", b="d0", c="d1")
    assert starts(timeline, "compute")["b", "d0", "forward"] == 1
    assert starts(timeline, "transfer")["a", "d0>d1", "forward"] == 2


def test_downloads() -> None:
    """What is returned goes to the host, one after the other, each when its device is through."""
    graph = chain(returned={"0": 4, "1": 4})
    timeline = play(graph, a="d0", b="d0", c="d0")
    down = [(s.start_s, s.layer) for s in timeline.spans if s.where == "d0>host"]
    assert down == [(3, "c"), (4, "c")]
    assert timeline.makespan_s == 4


def test_who_sends_a_gradient() -> None:
    """Only those from which a way leads to a loss; the loss's own gradient comes from the host."""
    graph = chain(returned={"0": 4}, losses={"0": 4})
    sent = starts(play(graph, a="d0", b="d1", c="d1"), "transfer")
    assert ("c", "host>d1", "backward") in sent and ("a", "d1>d0", "backward") in sent
    graph.edges["a", "c"]["no_grad"] = graph.edges["a", "b"]["no_grad"] = True
    sent = starts(play(graph, a="d0", b="d1", c="d1"), "transfer")
    assert ("a", "d1>d0", "backward") not in sent
    graph = chain(returned={"0": 4}, losses={"0": 4})
    sent = starts(play(graph, a="d0", b="d1", c="d0"), "transfer")
    assert ("a", "d1>d0", "backward") not in sent  # b leads nowhere


def test_order_of_launches() -> None:
    """The host walks through the code: who is not up waits, and launches after whom it waited for."""
    graph = graph_of({name: dict(KERNEL) for name in "abc"})
    timeline = play(graph, "cab", a="d0", b="d1", c="d0")
    assert starts(timeline, "compute") == {
        ("b", "d1", "forward"): 0,
        ("c", "d0", "forward"): 1,
        ("a", "d0", "forward"): 2,
    }


def test_the_host_holds_what_it_has_not_issued() -> None:
    """An output lives until all its readers were issued, on whatever device they run."""
    layer = {**KERNEL, "output_bytes": 4}
    graph = graph_of({name: dict(layer) for name in "abc"}, [("a", "b", 4), ("b", "c", 4)])
    assert play(graph, a="d0", b="d0", c="d0").peak_bytes["d0"] == 8
    far = graph_of({name: dict(layer) for name in "abc"}, [("a", "c", 4), ("a", "b", 4)])
    assert play(far, a="d0", b="d0", c="d1").peak_bytes["d0"] == 8


def test_glue_on_the_host() -> None:
    """Glue that reads inputs only takes no device's time where the model is spread; its result goes up."""
    nodes = {"input:x": {"kind": "input"}, "m": {**KERNEL, "kind": "glue", "on_host": True}}
    nodes |= {name: dict(KERNEL) for name in "ab"}
    graph = graph_of(nodes, [("input:x", "m", 4), ("m", "a", 2), ("a", "b", 4)])
    spread = play(graph, m="d0", a="d0", b="d1")
    assert ("m", "host>d0", "forward") in starts(spread, "transfer")
    assert ("input:x", "host>d0", "forward") not in starts(spread, "transfer")
    together = play(graph, m="d0", a="d0", b="d0")
    assert ("input:x", "host>d0", "forward") in starts(together, "transfer")


def test_copies_of_what_stays() -> None:
    """What the model returns is held to the end, and so are its copies; of a view of it, too."""
    nodes = {name: dict(KERNEL) for name in "abcde"}
    nodes["a"] |= {"output_bytes": 8, "held_bytes": 8, "passing_bytes": 0}
    nodes["e"] |= {"output_bytes": 5}
    edges = [("a", "b", 8), ("b", "c", 8), ("c", "d", 0), ("d", "e", 0)]
    where = {"a": "d0", "b": "d0", "c": "d1", "d": "d1", "e": "d1"}
    assert play(graph_of(nodes, edges), **where).peak_bytes["d1"] == 8 + 5
    del nodes["a"]["held_bytes"], nodes["a"]["passing_bytes"]
    assert play(graph_of(nodes, edges), **where).peak_bytes["d1"] == 8


def test_variables_go_where_the_code_is() -> None:
    """A variable that the code drops at a layer is gone when that one waits and the code has gone on; what
    the newest layer was given stays until its call returns, behind all that launches right after it."""
    nodes = {name: dict(KERNEL) for name in "abcd"}
    nodes["a"] |= {"output_bytes": 8, "held_until": "b"}
    nodes["c"] |= {"output_bytes": 4}
    nodes["d"] |= {"output_bytes": 3}
    nodes["b"] |= {"output_bytes": 5}
    graph = graph_of(nodes, [("a", "c", 8), ("c", "d", 4)])
    assert play(graph, "abcd", **dict.fromkeys("abcd", "d0")).peak_bytes["d0"] == 8 + 5 + 4
    # b waits for d, which launches last: c was given a's output, which no variable holds at d any more
    assert play(graph, "acdb", **dict.fromkeys("abcd", "d0")).peak_bytes["d0"] == 4 + 8
    # b waits for c, and launches inside of c's call, whose caller still holds what c was given
    assert play(graph, "acbd", **dict.fromkeys("abcd", "d0")).peak_bytes["d0"] == 8 + 4 + 5


def test_what_outlives_backward() -> None:
    """A cache that autograd keeps, too, is there when its layer's backward is over, and for the optimizer."""
    nodes = {name: dict(KERNEL) for name in "ab"}
    nodes["b"] |= {"saved_bytes": 8, "returned": {"0": 0}, "losses": {"0": 0}}
    nodes["a"] |= {"backward_rise_bytes": 5, "backward_kernels": 1}
    graph = graph_of(nodes, [("a", "b", 0)], training=True)
    assert play(graph, a="d0", b="d0").peak_bytes["d0"] == 8
    graph.nodes["b"]["lasting_bytes"] = 8
    assert play(graph, a="d0", b="d0").peak_bytes["d0"] == 8 + 5


def test_a_long_chain_of_views() -> None:
    """Thousands of layers that hand on what they got (dropout in inference) are no deeper than one."""
    names = [f"v{index}" for index in range(3_000)]
    nodes = {"a": {**KERNEL, "output_bytes": 4}} | {name: {"host_forward_s": 0} for name in names}
    nodes["b"] = dict(KERNEL)
    edges = [(one, other, 4) for one, other in pairwise(nodes)]
    graph = graph_of(nodes, edges)
    assert play(graph, **dict.fromkeys([*nodes][:-1], "d0"), b="d1").peak_bytes == {"d0": 4, "d1": 4}


def test_a_part_of_a_gradient_keeps_its_gaps() -> None:
    """What joined two tensors hands back parts of one gradient: a copy may have its gaps, a sum has none."""
    nodes = {name: dict(KERNEL) for name in "abcd"}
    nodes["c"] |= {"kind": "glue", "host_backward_s": 0, "upstream_grad_bytes": 16}
    nodes["d"] |= {"returned": {"0": 0}, "losses": {"0": 0}}
    edges = [("a", "c", 8), ("b", "c", 8), ("c", "d", 16)]
    graph = graph_of(nodes, edges, training=True)
    where = {"a": "d0", "b": "d1", "c": "d1", "d": "d1"}
    assert play(graph, **where).peak_bytes["d0"] == 16
    both = graph_of(nodes, [*edges, ("a", "d", 8)], training=True)
    assert play(both, **where).peak_bytes["d0"] == 8
