"""The tree of modules that the picture of layers is folded by."""

from collections.abc import Iterable, Mapping

from hypothesis import given, settings
from hypothesis import strategies as st
from matrix import examples
from place.graphs import graph_of

from baechi.records import LayerGraph
from baechi.report.html.tree import ALL_SHOWN, Branch, tree

names = st.lists(
    st.lists(st.sampled_from(["a", "b", *"0123456789"]), min_size=1, max_size=4).map(".".join),
    unique=True,
    max_size=120,
)


def graph_from(layers: Iterable[str]) -> LayerGraph:
    return graph_of({name: {"module": name} for name in layers})


def planted(layers: list[str], device_of: Mapping[str, str] | None = None) -> Branch:
    where = dict.fromkeys(layers, "d0") if device_of is None else device_of
    return tree(graph_from(layers), layers, where)


def shown(branch: Branch) -> list[str]:
    """The paths that the picture shows at first."""
    if branch.leaf >= 0 or not branch.open:
        return [branch.path]
    return [path for child in branch.children for path in shown(child)]


@given(names, st.randoms(use_true_random=False))
@settings(max_examples=examples(200), deadline=None)
def test_every_layer_is_a_leaf_once(layers: list[str], chance: object) -> None:
    """Folding loses nothing and doubles nothing, and many layers are never all shown at first."""
    device_of = {name: chance.choice(["d0", "d1"]) for name in layers}  # type: ignore[attr-defined]
    root = planted(layers, device_of)
    assert sorted(root.leaves()) == list(range(len(layers)))
    paths = shown(root)
    if len(layers) <= ALL_SHOWN:
        assert sorted(paths) == sorted(layers)


def test_small_graphs_are_all_shown() -> None:
    """A few layers need no folding."""
    layers = ["embed", *(f"blocks.{n}.{part}" for n in range(4) for part in ("norm", "mlp")), "head"]
    assert shown(planted(layers)) == layers


def test_large_ones_show_where_layers_lie_apart() -> None:
    """Blocks that are alike are one; the block that is cut is open; nothing else is."""
    parts = ("attention", "norm", "up", "down")
    layers = ["embed", *(f"model.blocks.{n}.{part}" for n in range(40) for part in parts), "head"]
    device_of = {name: f"d{place > 81}" for place, name in enumerate(layers)}
    root = planted(layers, device_of)
    assert shown(root) == [
        "embed",
        "model.blocks.0-19",
        *(f"model.blocks.20.{part}" for part in parts),
        "model.blocks.21-39",
        "head",
    ]


def test_labels() -> None:
    """An only child shares its parent's label; glue is its function; calls are numbered."""
    nodes = {
        "input:x": {"kind": "input"},
        "model.stem.conv": {"module": "model.stem.conv"},
        "model.stem.act": {"module": "model.stem.act"},
        "model.stem.act#1": {"module": "model.stem.act"},
        "glue:model.stem/add#0": {"kind": "glue"},
    }
    graph = graph_of(nodes)
    root = tree(graph, list(graph), dict.fromkeys(list(nodes)[1:], "d0"))
    assert [child.label for child in root.children] == ["x", "model.stem"]
    assert [child.label for child in root.children[1].children] == ["conv", "act", "act#1", "add"]
