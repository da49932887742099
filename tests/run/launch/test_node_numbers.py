"""Nodes of what waited are numbered as in the code, and nothing keeps its outputs alive."""

from typing import Any

import pytest
from order.interleaved import distribute
from run.launch.equal_layers import WHERE, Net, X
from run.launched import LAUNCHERS, launched_on
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

import baechi


def node_of(tensor: Tensor) -> Any:
    """The autograd node that made a tensor."""
    assert tensor.grad_fn is not None
    return tensor.grad_fn


LAST: dict[int, Tensor] = {}
"""Last outputs, by layer; not on the layer, which would have to launch at once if it changed itself."""


class Keeping(nn.Linear):
    """A layer whose last output is kept."""

    def forward(self, x: Tensor) -> Tensor:
        made = super().forward(x)
        if not isinstance(made, FakeTensor):  # else it would be known, and launch at once
            LAST[id(self)] = made
        return made


@pytest.mark.parametrize("reorder", LAUNCHERS)
def test_backward_order_of_a_layer_that_keeps_its_output(reorder: str) -> None:
    """Where a value becomes an alias of what a layer kept, the alias has a number of the host's, too."""
    kept: dict[str, Tensor] = {}

    def code(self: Any, x: Tensor) -> Tensor:
        kept["a"], kept["b"] = self.a(x), self.b(x)
        result: Tensor = self.c(kept["a"] + kept["b"])
        return result

    model = Net(code, "abc", a=Keeping(8, 8))
    with distribute(model, X, WHERE, "bac", reorder=reorder):
        model(**X)
    assert launched_on(model, "cpu:0") == ["b", "a"]
    numbers = [node_of(kept[name])._sequence_nr() for name in "ba"]
    assert numbers == sorted(numbers)
    LAST.clear()


def test_threads_take_no_more_memory() -> None:
    """Whoever launches what waits, devices hold the same: nothing but the code keeps outputs alive."""

    def code(self: Any, x: Tensor) -> Tensor:
        late = self.a(x)
        for _ in range(6):  # each is dropped as soon as the next one is there
            x = self.b(x).tanh().detach()
        result: Tensor = self.d(late + self.c(x))
        return result

    peaks = []
    for reorder in LAUNCHERS:
        model = Net(code)
        order = [*(f"b#{n}" if n else "b" for n in range(6)), "c", "a", "d"]
        with distribute(model, X, {"a": 0, "b": 0, "c": 0, "d": 1}, order, reorder=reorder):
            model(**X)
            peaks.append(dict(baechi.last_step(model).peak_bytes))
    assert peaks[0] == peaks[1]


def test_what_was_sent_keeps_its_number() -> None:
    """Nodes of a waiting layer count up from where the host is; what it reads keeps its own numbers."""
    kept: dict[str, Tensor] = {}

    def code(self: Any, x: Tensor) -> Tensor:
        kept["a"] = self.a(x)
        kept["c"] = self.c(kept["a"])  # waits for `d`
        kept["d"] = self.d(self.b(x))
        return kept["c"] + kept["d"]

    model = Net(code)
    with distribute(model, X, {"a": 0, "b": 0, "c": 1, "d": 1}, "abdc", reorder="threads"):
        model(**X)
    late = node_of(kept["c"])
    assert late._sequence_nr() > node_of(kept["d"])._sequence_nr()
    arrive = late.next_functions[1][0]  # of the bias, the input and the weight
    depart = arrive.next_functions[0][0]
    assert (type(arrive).__name__, type(depart).__name__) == ("_ArriveBackward", "_DepartBackward")
    assert depart._sequence_nr() == node_of(kept["a"])._sequence_nr() + 1
    assert late._sequence_nr() > arrive._sequence_nr() > depart._sequence_nr()
