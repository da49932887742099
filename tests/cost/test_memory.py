"""The table of what a layer takes."""

import pytest
from place.graphs import graph_of

from baechi.cost.memory import (
    Footprint,
    footprints,
    least_update_bytes,
    update_peak_bytes,
)
from baechi.cost.optimizers import OPTIMIZERS, optimizer_costs
from baechi.records import LayerGraph

AMOUNTS = {
    "param_bytes": 100,
    "buffer_bytes": 10,
    "grad_bytes": 60,
    "output_bytes": 7,
    "saved_bytes": 5,
    "upstream_grad_bytes": 3,
    "temp_bytes": 1,
}


def one_layer(training: bool = False, optimizer: str | None = None, **changes: float) -> LayerGraph:
    attributes = {"training": training} | ({"optimizer": optimizer} if optimizer else {})
    return graph_of({"a": AMOUNTS | changes}, **attributes)


def test_inference() -> None:
    """Weights are permanent, output and temporary bytes are not; nothing else is there."""
    footprint = footprints(one_layer())["a"]
    assert footprint == Footprint(110, 0, 7, 1, 0)
    assert (footprint.permanent_bytes, footprint.forward_bytes) == (110, 8)


def test_training() -> None:
    """Optimizer state is always there; what autograd keeps goes as gradients come; its step needs room."""
    footprint = footprints(one_layer(training=True), "adam")["a"]
    assert footprint == Footprint(
        110 + 60 + 120, 5, 2, 1, 3, update_bytes=60, largest_update_bytes=60, gradient_bytes=60
    )
    assert (footprint.always_bytes, footprint.permanent_bytes) == (110 + 120, 110 + 120 + 60)
    assert (footprint.forward_bytes, footprint.backward_bytes) == (3, 4 + 5)


def test_small_gradients() -> None:
    """Where autograd keeps more than gradients take, that is permanent, and these come on top."""
    footprint = footprints(one_layer(training=True, grad_bytes=2))["a"]
    assert (footprint.permanent_bytes, footprint.backward_bytes) == (110 + 5, 4 + 2)


def test_gradients_of_ties() -> None:
    """Gradients of tied weights come with the first backward; the owner has the optimizer's state."""
    tied = graph_of(
        {"a": AMOUNTS | {"backward_grad_bytes": 0}, "b": {"backward_grad_bytes": 60}}, training=True
    )
    owner, other = footprints(tied, "momentum").values()
    assert (owner.resident_bytes, owner.gradient_bytes) == (110 + 60, 0)
    assert (other.resident_bytes, other.gradient_bytes) == (60, 60)


def test_output_that_is_kept() -> None:
    """Output that autograd keeps is in what it keeps, and not counted twice."""
    footprint = footprints(one_layer(training=True, saved_bytes=7))["a"]
    assert (footprint.saved_bytes, footprint.output_bytes) == (7, 0)


@pytest.mark.parametrize(("name", "per_byte"), [("sgd", 0), ("momentum", 1), ("adamw", 2), ("Adam", 2)])
def test_optimizer_state(name: str, per_byte: int) -> None:
    """State goes by the bytes that are trained, not by all parameters."""
    assert optimizer_costs(name).state_bytes == per_byte
    resident = footprints(one_layer(training=True), name)["a"].resident_bytes
    assert resident == 110 + 60 * (1 + per_byte)


def test_optimizer_of_the_graph() -> None:
    """The graph's own optimizer counts unless another is named; in inference none does."""
    noted = one_layer(training=True, optimizer="adam")
    assert footprints(noted) == footprints(one_layer(training=True), "adam")
    assert footprints(noted, "sgd") == footprints(one_layer(training=True))
    assert footprints(one_layer(optimizer="adam")) == footprints(one_layer())


def test_unknown_optimizer() -> None:
    """An unknown optimizer is refused with all that are known."""
    with pytest.raises(ValueError, match="'lion' is unknown") as caught:
        footprints(one_layer(), "lion")
    assert all(repr(name) in str(caught.value) for name in OPTIMIZERS)


def test_inputs_and_missing_amounts() -> None:
    """Inputs take nothing of a device; what is missing is 0."""
    graph = graph_of({"input:x": {"kind": "input", "output_bytes": 9}, "a": {}})
    assert footprints(graph) == {"a": Footprint(0, 0, 0, 0, 0)}


def test_gradients_that_are_added_up() -> None:
    """Who accumulates has gradients beside all that is kept."""
    footprint = footprints(graph_of({"a": AMOUNTS}, training=True, accumulate=True))["a"]
    assert (footprint.always_bytes, footprint.permanent_bytes) == (110 + 60, 110 + 60 + 5)


def test_gradients_that_are_added_up_of_tied_weights() -> None:
    """The last reader makes the first gradient, which is there until the owner has added to it."""
    rows = {"owner": {"grad_bytes": 60, "backward_grad_bytes": 0}, "reader": {"backward_grad_bytes": 60}}
    footprint = footprints(graph_of(rows, training=True, accumulate=True))
    assert (footprint["owner"].always_bytes, footprint["owner"].gradient_bytes) == (60, -60)
    assert (footprint["reader"].always_bytes, footprint["reader"].gradient_bytes) == (0, 60)


def test_the_optimizers_step() -> None:
    """One by one a weight needs itself twice beside what the one before left; all at once, all of them."""
    assert update_peak_bytes(100, 10) == 100
    assert update_peak_bytes(25, 10) == 30 and update_peak_bytes(13, 10) == 23
    assert update_peak_bytes(10, 10) == 20
    for total, largest in ((100, 10), (25, 10), (13, 10), (10, 10), (0, 0)):
        assert least_update_bytes(total, largest) <= update_peak_bytes(total, largest)
