"""What tests of the launch order found, in the smallest model that shows it."""

import copy
import logging
from typing import Any

import pytest
import torch
from architectures import OTHERS
from order.drives import Drive
from order.interleaved import distribute, layers_on
from run.launched import launched_on, runtime_of
from same import assert_same, step
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

import baechi
from baechi.order import LaunchOrder, waiting_layers

LAUNCHERS = ("host", "threads")


class Net(nn.Module):
    """Equal layers by name around a function that is its forward."""

    def __init__(self, code: Any, names: str = "abcd", **layers: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.code = code
        for name in names:
            setattr(self, name, layers.get(name) or nn.Linear(8, 8))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.code(self, *args, **kwargs)


X = {"x": torch.linspace(-1, 1, 24).view(3, 8)}


# --- turns


def order_of(plan: str, code: str) -> LaunchOrder:
    """A launch order of layers on one device that do not read each other."""
    return LaunchOrder(dict.fromkeys(code, "d0"), tuple(plan), dict.fromkeys(code, ()), tuple(code))


def test_who_waits_for_a_skipped_layer_is_told() -> None:
    """The layer that shows that another was skipped need not be the one that waits for that."""
    assert Drive(order_of("BAC", "ABC")).run("AC").launched == ["A", "C"]


def test_a_layer_that_is_reached_late() -> None:
    """A layer that counts as skipped and is reached after all launches where the code reaches it."""
    run = Drive(order_of("AB", "AB")).run("BA")
    assert (run.launched, run.waited) == (["B", "A"], [])


def test_a_skipped_layer_in_a_model() -> None:
    """A branch that is not taken holds up nobody until the end of the step."""

    def code(self: Any, x: Tensor) -> Tensor:
        h = self.a(x)
        k = self.b(x) if self.taken else x
        result: Tensor = self.d(h + k + self.c(x))
        return result

    model = Net(code)
    model.taken = True  # type: ignore[assignment]
    with distribute(model, X, {"a": 0, "b": 0, "c": 0, "d": 1}, "bacd"):
        model.taken = False  # type: ignore[assignment]
        model(**X)
    assert launched_on(model, "cpu:0") == ["a", "c"]
    assert runtime_of(model).forced == []


# --- weights that nothing reads


@pytest.mark.parametrize("first", ["unused", "a"])
def test_unused_weights_hold_nobody(first: str) -> None:
    """A node for weights that nothing reads never launches; no layer waits for its turn."""

    def code(self: Any, x: Tensor) -> Tensor:
        result: Tensor = self.c(self.b(self.a(x)))
        return result

    model = Net(code, "abc")
    model.unused = nn.Linear(8, 8)
    graph = baechi.profile(model, X, cluster=baechi.Cluster.virtual(1))
    assert graph.nodes["unused"]["unread"]
    cluster = baechi.Cluster.virtual(2)
    rest = [name for name in ("a", "b", "c") if name != first]
    order = (first, *rest) if first == "unused" else (first, "unused", *rest)
    device_of = dict.fromkeys("abc", "cpu:0") | {"unused": "cpu:0", "c": "cpu:1"}
    plan = baechi.Plan(graph, cluster, device_of, order)
    assert waiting_layers(LaunchOrder.of(plan)) == []
    baechi.assign(model, plan)
    with cluster:
        model(**X)
    assert runtime_of(model).counts.get("deferred", 0) == 0


# --- what is said of a step


def two_chains(self: Any, x: Tensor) -> Tensor:
    """`a` waits where the plan says `b` first."""
    result: Tensor = self.c(self.a(x) * 2 + self.b(x))
    return result


WHERE = {"a": 0, "b": 0, "c": 1}


def test_counters_are_those_of_the_last_step() -> None:
    """A step without reordering after one with it has nothing deferred, forced or launched late."""
    model = Net(two_chains, "abc")
    with distribute(model, X, WHERE, "bac"):
        model(**X)
        assert baechi.last_step(model).counters["deferred"] == 2
        with baechi.reordering(model, False):
            model(**X)
        counters = baechi.last_step(model).counters
    assert {name: counters.get(name, 0) for name in ("deferred", "forced", "threads")} == {
        "deferred": 0, "forced": 0, "threads": 0
    }  # fmt: skip
    assert runtime_of(model).launched == []


# --- threads


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


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("reorder", LAUNCHERS)
def test_outputs_travel_once_in_inference(reorder: str, mode: Any) -> None:
    """What a waiting layer made is sent ahead under the modes of the code, so its reader finds it."""

    def code(self: Any, x: Tensor) -> Tensor:
        with mode():
            h = self.c(self.a(x))
        result: Tensor = h + self.d(self.b(x))
        return result

    counts = []
    for way in (False, reorder):
        model = Net(code)
        with distribute(model, X, {"a": 0, "b": 0, "c": 1, "d": 1}, "badc", reorder=way):
            model(**X)
            counts.append(baechi.last_step(model).counters["transfers"])
    assert counts[0] == counts[1]


# --- who writes


@pytest.mark.parametrize("reorder", LAUNCHERS)
def test_a_module_that_writes_only_its_own_buffers(reorder: str) -> None:
    """Both calls of a layer with statistics read one tensor; that forces nobody who waits to read it."""

    def code(self: Any, x: Tensor) -> Tensor:
        x = x * 2
        first = self.a(x)
        other = self.b(x)  # waits for the second call of `a`
        result: Tensor = self.c(first + self.a(x) + other)
        return result

    model = Net(code, "abc", a=nn.BatchNorm1d(8))
    with distribute(model, X, WHERE, ["a", "a#1", "b", "c"], reorder=reorder):
        model(**X)
    assert launched_on(model, "cpu:0") == layers_on(baechi.plan_of(model), "cpu:0") == ["a", "a#1", "b"]
    assert [str(one) for one in runtime_of(model).forced] == []


class Double(torch.autograd.Function):
    """Twice its input; its gradient is tripled, so that a lost one is seen."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0] * 3


def written_then_given(self: Any, x: Tensor) -> Tensor:
    """A tensor that is real, and that somebody waits to write, goes into a function."""
    total = torch.ones_like(x)
    total.add_(self.a(x))
    doubled: Tensor = Double.apply(total)
    result: Tensor = self.c(doubled + self.b(x))
    return result


def view_then_given(self: Any, x: Tensor) -> Tensor:
    """So does a view of it."""
    total = torch.ones_like(x)
    total.add_(self.a(x))
    doubled: Tensor = Double.apply(total[:, :])
    result: Tensor = self.c(doubled + self.b(x))
    return result


def written_then_mapped(self: Any, x: Tensor) -> Tensor:
    """And into a map over its rows."""
    total = torch.ones_like(x)
    total.add_(self.a(x))
    doubled = torch.vmap(lambda row: row * 2)(total)
    result: Tensor = self.c(doubled + self.b(x))
    return result


def copied_deeply(self: Any, x: Tensor) -> Tensor:
    """The code copies a value."""
    h = self.a(x)
    kept = copy.deepcopy(h.detach())
    result: Tensor = self.c(h + kept + self.b(x))
    return result


@pytest.mark.timeout(60)
@pytest.mark.parametrize("reorder", LAUNCHERS)
@pytest.mark.parametrize(
    "code",
    [written_then_given, view_then_given, written_then_mapped, copied_deeply],
    ids=lambda code: code.__name__,
)
def test_ways_past_every_mode(code: Any, reorder: str) -> None:
    """Numbers and gradients are right, and no step hangs."""
    reference = step(Net(code, "abc"), X, training=True)
    model = Net(code, "abc")
    with distribute(model, X, WHERE, "bac", reorder=reorder):
        result = step(model, X, training=True)
    assert_same(reference, result, tolerance=1e-6)


# --- inference of what layers return


def test_no_errors_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """A layer that cannot run with fake tensors is forced, and torch's log says nothing of it."""
    given = next(one for one in OTHERS if one.name == "qwen2_moe")
    graph = baechi.profile(given.build(), given.inputs(), cluster=baechi.Cluster.virtual(1), training=True)
    cluster = baechi.Cluster.virtual(3, memory="1GiB")
    model = baechi.assign(given.build(), baechi.place(graph, cluster, "random:0"))
    torch_log = logging.getLogger("torch")
    torch_log.addHandler(caplog.handler)
    try:
        with cluster:
            step(model, given.inputs(), training=True)
    finally:
        torch_log.removeHandler(caplog.handler)
    assert runtime_of(model).counts["forced"] == 2
    assert [record.levelname for record in caplog.records if record.levelno >= logging.ERROR] == []


# --- memory


@pytest.mark.parametrize("shared", ["by calls", "by a tie"])
def test_gradients_of_weights_with_several_uses(shared: str) -> None:
    """The second gradient of a weight is made while the first is held: the plan's peak has both."""

    def code(self: Any, x: Tensor) -> Tensor:
        second = self.a if shared == "by calls" else self.b
        result: Tensor = self.c(second(self.a(x)))
        return result

    model = Net(code, "", a=nn.Linear(8, 8))
    model.a, model.b, model.c = (nn.Linear(64, 64, bias=False) for _ in range(3))
    if shared == "by a tie":
        model.b.weight = model.a.weight
    else:
        del model.b
    x = {"x": torch.ones(2, 64)}
    cluster = baechi.Cluster.virtual(2)
    baechi.distribute(model, x, cluster=cluster, device_map={"a": 0, "b": 0, "c": 1}, training=True)
    with cluster:
        model(**x).sum().backward()
        measured = baechi.last_step(model).peak_bytes
    planned = baechi.plan_of(model).timeline.peak_bytes
    assert all(measured[device] <= planned[device] for device in cluster.names)
