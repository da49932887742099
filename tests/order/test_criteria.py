"""The design document's figures: which layers wait under each criterion."""

import pytest

from baechi.order import CRITERIA, LaunchOrder, waiting_layers


def order_of(plan: str, code: str, devices: dict[str, str] | None = None, edges: str = "") -> LaunchOrder:
    """A launch order from letters; `edges` such as `"AB CD"`."""
    parents: dict[str, list[str]] = {layer: [] for layer in code}
    for source, target in edges.split():
        parents[target].append(source)
    where = devices or {}
    return LaunchOrder(
        {layer: where.get(layer, "gpu0") for layer in code},
        tuple(plan),
        {layer: tuple(found) for layer, found in parents.items()},
        tuple(code),
    )


FIGURE_2 = order_of("ABECDF", "ABCDEF", edges="AB BC CD BE DF EF")
FIGURE_3 = order_of("AGBCDEF", "ABCDEFG", {"G": "gpu1", "D": "gpu1"}, edges="AB BC CD DE EF")


def test_figure_2() -> None:
    """One device: C waits for E, which the code reaches later, and D for C; F need not wait."""
    assert waiting_layers(FIGURE_2, "gpu-topo") == ["C", "D"]
    assert waiting_layers(FIGURE_2, "global-topo") == ["C", "D"]
    assert waiting_layers(FIGURE_2, "naive") == list("ABCDEF")


def test_figure_3() -> None:
    """Two devices: G comes late in the code and early in the plan. By the global order B to F wait;
    by that of each device only D, whose device runs G first, E, which reads D, and F behind E."""
    assert waiting_layers(FIGURE_3, "global-topo") == list("BCDEF")
    assert waiting_layers(FIGURE_3, "gpu-topo") == list("DEF")


@pytest.mark.parametrize("criterion", CRITERIA[1:])
def test_code_order_needs_nobody_to_wait(criterion: str) -> None:
    """Where the plan runs layers as the code does, none waits."""
    assert waiting_layers(order_of("ABCDEF", "ABCDEF", {"C": "gpu1"}), criterion) == []  # type: ignore[arg-type]


def test_unknown_criterion() -> None:
    """A misspelt criterion is told, with those that there are."""
    with pytest.raises(ValueError, match="global-topo, gpu-topo"):
        waiting_layers(FIGURE_2, "gpu")  # type: ignore[arg-type]
