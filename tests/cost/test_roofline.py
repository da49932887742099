"""Seconds from peak rates."""

import pytest

from baechi.cost.roofline import Work, layer_s
from baechi.records import Device, LayerGraph

DEVICE = Device("d", flops_per_s={"float32": 10.0, "bfloat16": 100.0}, bytes_per_s=5.0)


@pytest.mark.parametrize(
    ("flops", "moved_bytes", "seconds"),
    [(40, 5, 4.0), (40, 100, 20.0), (0, 5, 1.0), (40, 0, 4.0), (0, 0, 0.0)],
)
def test_the_slower_binds(flops: float, moved_bytes: float, seconds: float) -> None:
    """Arithmetic or memory, whichever takes longer."""
    assert layer_s(DEVICE, flops, moved_bytes) == seconds


@pytest.mark.parametrize(("dtype", "seconds"), [("bfloat16", 1.0), ("float32", 10.0), ("int8", 10.0)])
def test_rate_by_dtype(dtype: str, seconds: float) -> None:
    """A dtype without a rate has float32's."""
    assert layer_s(DEVICE, 100, 0, dtype) == seconds


def test_any_rate() -> None:
    """Without float32's, the lowest rate there is."""
    device = Device("d", flops_per_s={"float16": 8.0, "int8": 16.0})
    assert layer_s(device, 16, 0, "float64") == 2.0


def test_backward() -> None:
    """Backward does what the graph says; where it says nothing, twice what forward does."""
    graph = LayerGraph(training=True)
    graph.add_node(
        "a", kind="layer", flops=40, moved_bytes=5, kernels=1, backward_kernels=3, backward_flops=50
    )
    assert Work.of(graph, "a", backward=False) == Work(40, 5, 1)
    assert Work.of(graph, "a", backward=True) == Work(80, 10, 2)
    graph.graph["backward_captured"] = True
    assert Work.of(graph, "a", backward=True) == Work(50, 0, 3)


def test_gradients_that_stay() -> None:
    """Backward adds to them: a kernel a weight, which reads both and writes one."""
    graph = LayerGraph(training=True, backward_captured=True, accumulate=True)
    graph.add_node(
        "a", kind="layer", kernels=1, backward_kernels=3, grad_bytes=20, grads=2, weights=["w"] * 3
    )
    assert Work.of(graph, "a", backward=False) == Work(0, 0, 1)
    assert Work.of(graph, "a", backward=True) == Work(0, 60, 5)
    assert Work.of_additions(graph.costs("a")) == Work(0, 60, 2)
    graph.add_node("b", kind="layer", weights=["running_mean"])
    assert Work.of_additions(graph.costs("b")) == Work(0, 0, 0)


def test_each_kernel_has_its_own_roofline() -> None:
    """Arithmetic hides what its own kernel moves; the others' bytes come on top."""
    assert Work(40, 10, 2).seconds(DEVICE, "float32") == 4.0
    assert Work(40, 10, 2, ((40, 0),)).seconds(DEVICE, "float32") == 6.0  # the second one only moves
    assert Work(40, 30, 2, ((30, 5), (10, 25))).seconds(DEVICE, "float32") == 8.0  # 3 s, and 5 s for bytes
    assert Work(40, 30, 3, ((30, 5), (10, 20))).seconds(DEVICE, "float32") == 8.0


def test_kernels_of_a_graph() -> None:
    """A graph says what its kernels do; where it says nothing of backward, each does twice as much."""
    graph = LayerGraph(training=True)
    graph.add_node(
        "a",
        kind="layer",
        flops=40,
        moved_bytes=30,
        arithmetic=[[30, 5], [10, 25]],
        backward_flops=20,
        backward_moved_bytes=9,
        backward_arithmetic=[[20, 4]],
    )
    assert Work.of(graph, "a", backward=False) == Work(40, 30, 0, ((30, 5), (10, 25)))
    assert Work.of(graph, "a", backward=True) == Work(80, 60, 0, ((60, 10), (20, 50)))
    graph.graph["backward_captured"] = True
    assert Work.of(graph, "a", backward=True) == Work(20, 9, 0, ((20, 4),))


@pytest.mark.parametrize(("flops", "moved_bytes", "what"), [(1, 0, "flops_per_s"), (0, 1, "bytes_per_s")])
def test_no_rate(flops: float, moved_bytes: float, what: str) -> None:
    """A device without the rate that is needed is refused by name."""
    with pytest.raises(ValueError, match=f"device 'd' has no {what}.*like="):
        layer_s(Device("d"), flops, moved_bytes)
