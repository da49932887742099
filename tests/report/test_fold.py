"""Layers folded by module: by hand, and that nothing is lost."""

from hypothesis import given, settings
from hypothesis import strategies as st
from matrix import examples
from place.graphs import graph_of

from baechi.report.fold import fold, module_of, prefixes

names = st.lists(
    st.lists(st.sampled_from(["a", "b", "0", "1", "2", "10"]), min_size=1, max_size=4).map(".".join),
    unique=True,
    max_size=30,
)


def folded(layers: list[str], meant: list[str], limit: int = 8) -> list[str]:
    graph = graph_of({name: {"module": name} for name in layers})
    return [str(part) for part in fold(graph, meant, limit)]


BLOCKS = [
    f"layers.{block}.{part}" for block in range(12) for part in ("attention", "norm", "mlp.up", "mlp.down")
]
MODEL = ["embed", *BLOCKS, "head"]


def test_all() -> None:
    """All layers are the model."""
    assert folded(MODEL, MODEL) == ["everything"]


def test_whole_modules_and_numbers() -> None:
    """Whole modules by their names, and those that follow each other by number as one."""
    assert folded(MODEL, ["embed", *BLOCKS[:24]]) == ["embed", "layers.0-5"]
    assert folded(MODEL, [*BLOCKS[4:8], *BLOCKS[12:14], "head"]) == [
        "layers.1",
        "layers.3.attention",
        "layers.3.norm",
        "head",
    ]


def test_parts_where_there_are_too_many_words() -> None:
    """What would take too many words is counted instead."""
    every_other = ["embed", *BLOCKS[::2]]
    assert folded(MODEL, every_other) == ["embed", "layers (24 of 48 layers)"]
    assert folded(MODEL, every_other, 1) == ["the model (25 of 50 layers)"]


def test_glue_is_left_out() -> None:
    """Glue goes with its module, and is counted elsewhere."""
    graph = graph_of({"a": {"module": "a"}, "glue:b/add#0": {"kind": "glue"}})
    assert [str(part) for part in fold(graph, ["a", "glue:b/add#0"])] == ["everything"]
    assert fold(graph, ["glue:b/add#0"]) == []
    assert module_of(graph, "glue:b/add#0") == "b" and module_of(graph, "glue:/add#0") == ""


@given(names, st.integers(1, 9), st.randoms(use_true_random=False))
@settings(max_examples=examples(300), deadline=None)
def test_nothing_is_lost(layers: list[str], limit: int, chance: object) -> None:
    """Every layer that is meant is under one fold, the counts are right, and the limit is kept."""
    layers = [name for name in layers if not any(other.startswith(f"{name}.") for other in layers)]
    meant = [name for name in layers if chance.random() < 0.6]  # type: ignore[attr-defined]
    graph = graph_of({name: {"module": name} for name in layers})
    folds = fold(graph, meant, limit)
    assert sum(part.here for part in folds) == len(meant)
    assert len(folds) <= limit
    for part in folds:
        under = [name for name in layers if part.module in prefixes(name)]
        if not part.last:
            assert part.of == len(under) and part.here == len([name for name in under if name in meant])
