"""The ablation takes away what it says, and only that."""

from place.graphs import graph_of

from benches.ablation import ALL, TERMS, ablation, in_aim, without


def test_a_term_is_taken_off() -> None:
    """The attributes of nodes are gone from a copy; the rest stays, and so does the graph."""
    graph = graph_of({"a": {"lent_bytes": 3, "saved_bytes": 5}, "b": {}})
    bare = without(graph, TERMS["what is kept for readers"])
    assert [graph.costs("a").lent_bytes, bare.costs("a").lent_bytes, bare.costs("a").saved_bytes] == [3, 0, 5]


def test_the_aim() -> None:
    """A peak is never said to be lower than it is, nor far above."""
    assert [in_aim(off) for off in (-0.001, 0.0, 0.15, 0.151)] == [False, True, True, False]


def test_with_all_terms_the_simulator_is_near() -> None:
    """With nothing removed, steps and peaks are within the aim; without the host, steps are not."""
    rows = list(ablation(quick=True))
    assert {row.removed for row in rows} == {"", ALL, *TERMS}
    for row in [row for row in rows if not row.removed]:
        assert abs(row.step_off) <= 0.05 and all(in_aim(off) for off in row.peaks_off), row
    assert all(abs(row.step_off) > 0.05 for row in rows if row.removed == "the host")
