"""Everything on one device: which, and what is said when there is none."""

import pytest
from place.graphs import chain, cluster_of, graph_of

from baechi.errors import PlacementError
from baechi.place.placers.single import single


@pytest.mark.parametrize(
    ("memory", "speeds", "device"),
    [
        ((500, 500), (1, 1), "d0"),
        ((500, 900), (1, 1), "d1"),
        ((500, 900), (2, 1), "d0"),
        ((10, 900, 500), (9, 1, 1), "d1"),
    ],
)
def test_which(memory: tuple[int, ...], speeds: tuple[float, ...], device: str) -> None:
    """The fastest that holds everything, then the largest, then the first."""
    assert single(chain(), cluster_of(*memory, speeds=speeds)).devices_used == (device,)


def test_pin_decides() -> None:
    """A pinned layer takes everything along."""
    graph = chain()
    graph.nodes["l3"]["pin"] = "d1"
    assert single(graph, cluster_of(900, 500)).devices_used == ("d1",)


def test_two_pins() -> None:
    """Layers pinned to two devices cannot lie on one."""
    graph = graph_of({"a": {"pin": "d0"}, "b": {"pin": "d1"}})
    with pytest.raises(PlacementError, match="'d0' and 'd1'") as caught:
        single(graph, cluster_of(900, 500))
    assert caught.value.layer == "b"


def test_refusal() -> None:
    """The error says what is needed, what there is and what would help."""
    graph = graph_of({"small": {"param_bytes": 1024}, "big": {"param_bytes": 2048, "output_bytes": 512}})
    with pytest.raises(PlacementError) as caught:
        single(graph, cluster_of(1024, 2048))
    assert str(caught.value) == (
        "no device holds all layers: they need 3.50 KiB, the largest part big with 2.50 KiB\n"
        "  d0: 1.00 KiB, 2.50 KiB short\n"
        "  d1: 2.00 KiB, 1.50 KiB short\n"
        "What would help: a placer that uses several devices, devices with more memory, or a smaller batch."
    )
    assert caught.value.layer == "big"
    assert caught.value.short_bytes == {"d0": 2560, "d1": 1536}


def test_optimizer_state() -> None:
    """The state of the optimizer decides whether a model fits, and what its step needs."""
    graph = graph_of({"a": {"param_bytes": 10, "grad_bytes": 10}}, training=True)
    assert single(graph, cluster_of(20), optimizer="sgd").placer == "single"
    with pytest.raises(PlacementError):
        single(graph, cluster_of(59), optimizer="adam")
    assert single(graph, cluster_of(60), optimizer="adam").placer == "single"
