"""What was wrong with launching in the first implementation; numbers as in the reference."""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
import torch
from order.interleaved import distribute
from run.launch.chains import EVERY_WAY, ORDER, WHERE, Net, chains, forced, linear, values
from run.launched import LAUNCHERS, launched_on
from torch import Tensor, nn

import baechi
from baechi.run.binding import binding_of

pytestmark = pytest.mark.default_cases(2)


@pytest.mark.parametrize("reorder", EVERY_WAY)
def test_r1_layers_return_tensors(reorder: Any) -> None:
    """R1: a layer's output can be doubled, added and handed to functions, and nothing is lost silently."""
    seen: list[Any] = []

    def code(self: Any, x: Tensor) -> Tensor:
        doubled = self.a(x) * 2
        added = self.a(x) + self.b(x)
        rectified = torch.relu(self.a(x))
        seen[:] = [doubled, added, rectified]
        assert all(isinstance(value, Tensor) and value.shape == x.shape for value in seen)
        result: Tensor = self.c(torch.cat(seen).sum(0))
        return result

    plain, model = (Net(code, a=linear(), b=linear(), c=linear()) for _ in range(2))
    expected = plain(values())
    expected_parts = [value.clone() for value in seen]
    cluster = distribute(model, values(), WHERE, ["b", "a", "a#1", "a#2", "c"], reorder=reorder)
    with cluster:
        assert torch.equal(model(values()), expected)
    assert [type(value) for value in seen] == [Tensor] * 3
    assert all(torch.equal(one, other) for one, other in zip(expected_parts, seen, strict=True))


@pytest.mark.parametrize("reorder", EVERY_WAY)
def test_r2_every_way_to_run(reorder: Any) -> None:
    """R2: each kind of reordering can be chosen, and reordering can be switched off; all give the same."""
    plain, model = chains(), chains()
    cluster = distribute(model, values(), WHERE, ORDER, reorder=reorder)
    with cluster:
        assert torch.equal(model(values()), plain(values()))
        counters = baechi.last_step(model).counters
    if reorder is False:
        assert counters.get("deferred", 0) == 0
    else:  # `a`, `a * 2` and `c` with the sum that it reads: they wait for `b`
        assert counters["deferred"] == 2 and counters["forced"] == 0
        assert counters["threads"] == (2 if reorder == "threads" else 0)
        assert launched_on(model, "cpu:0") == ["b", "a"]


def test_r2_switched_off_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """R2: `BAECHI_REORDER=0` is enough to run in the code's order."""
    plain, model = chains(), chains()
    cluster = distribute(model, values(), WHERE, ORDER)
    monkeypatch.setenv("BAECHI_REORDER", "0")
    with cluster:
        assert torch.equal(model(values()), plain(values()))
        spans = [span.layer for span in baechi.last_step(model).spans if span.where == "cpu:0"]
    assert [layer for layer in spans if layer] == ["a", "b"]


class Fails(nn.Module):
    """Raises when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.on = False
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        # a fake run, which only asks for shapes, must not raise what the real one does
        if self.on and not isinstance(x, torch._subclasses.FakeTensor):
            raise ZeroDivisionError("on purpose")
        return x * self.weight


@pytest.mark.parametrize("emulated", [True, False], ids=["emulated", "outside"])
@pytest.mark.parametrize("reorder", EVERY_WAY)
def test_r3_a_layer_that_raises(reorder: Any, emulated: bool) -> None:
    """R3: what a waiting layer raises reaches the caller whole, nobody hangs, and the next step works."""
    kept: list[Tensor] = []

    def code(self: Any, x: Tensor) -> Tensor:
        kept[:] = [self.a(x)]
        kept.append(self.c(kept[0]))
        result: Tensor = self.c(kept[1]) + self.b(x)
        return result

    def build() -> Net:
        return Net(code, a=Fails(), b=linear(), c=linear())

    plain, model = build(), build()
    cluster = distribute(model, values(), WHERE, ["b", "a", "c", "c#1"], reorder=reorder)
    threads = threading.active_count()
    model.a.on = True
    with run_in(cluster, emulated):
        for _ in range(2):
            with pytest.raises(ZeroDivisionError, match="on purpose") as caught:
                model(values())
            assert caught.value.__notes__ == ["in layer a (Fails) on cpu:0"]
            assert torch._C._len_torch_function_stack() == 0
            if reorder is not False:  # what hangs on it says so; it never shows a wrong number
                with pytest.raises(baechi.BaechiError, match="never computed"):
                    kept[0].sum()
        model.a.on = False
        assert torch.equal(model(values()), plain(values()))
    assert threading.active_count() == threads


@contextmanager
def run_in(cluster: baechi.Cluster, emulated: bool) -> Iterator[None]:
    """Inside `with cluster:`, or not."""
    if not emulated:
        yield
        return
    with cluster:
        yield


SEEN: dict[int, tuple[Any, ...]] = {}
"""What a `Witness` found; not on the layer, which would have to launch at once if it changed itself."""


class Witness(nn.Linear):
    """Notes what was set when it ran last."""

    def __init__(self) -> None:
        super().__init__(8, 8)
        self.load_state_dict(linear().state_dict())

    def forward(self, x: Tensor) -> Tensor:
        autocast = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
        modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled(), autocast
        seen = vars(sys.modules[__name__])["SEEN"]  # by no name of a global: such layers do not wait
        seen[id(self)] = (*modes, torch.get_default_dtype(), torch.get_num_threads())
        return super().forward(x)


@contextmanager
def double() -> Iterator[None]:
    """Double precision as the default."""
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


MODES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "default dtype": double,
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("reorder", EVERY_WAY)
def test_r4_modes_of_the_caller(reorder: Any, mode: str) -> None:
    """R4: a layer that launches later launches under the modes that were on where the code reached it."""

    def code(self: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        with MODES[mode]():
            inside = self.a(x)
        return inside, self.c(self.b(x))

    plain, model = (Net(code, a=Witness(), b=linear(), c=linear()) for _ in range(2))
    expected = plain(values())
    cluster = distribute(model, values(), WHERE, ORDER, reorder=reorder)
    with cluster:
        found = model(values())
    casts = mode == "autocast"  # a weight is cast once for all its calls, where the code reaches the first
    assert casts or forced(model) == []
    assert launched_on(model, "cpu:0") == ([] if reorder is False else ["a", "b"] if casts else ["b", "a"])
    assert SEEN[id(model.a)] == SEEN[id(plain.a)]
    for one, other in zip(expected, found, strict=True):
        assert torch.equal(one, other) and one.dtype == other.dtype
        assert one.requires_grad == other.requires_grad


class Noted(nn.Module):
    """A layer that notes its launch and its backward."""

    def __init__(self, name: str, notes: list[str]) -> None:
        super().__init__()
        self.name, self.notes = name, notes
        self.inner = linear()

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = Note.apply(self.inner(x), self.name, self.notes)
        return result


class Note(torch.autograd.Function):
    """The identity; its backward notes a name."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, name: str, notes: list[str]) -> Tensor:
        ctx.name, ctx.notes = name, notes
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        ctx.notes.append(ctx.name)
        return grads[0], None, None


@pytest.mark.parametrize("reorder", LAUNCHERS)
@pytest.mark.parametrize("seed", [0, 2, 3, 4])
def test_r4_backward_is_the_launch_order_in_reverse(seed: int, reorder: str) -> None:
    """R4: whichever thread launched a layer, autograd numbers nodes in the order of launches."""
    names, notes = [f"l{index}" for index in range(8)], []
    outputs: dict[str, Tensor] = {}

    def code(self: Any, x: Tensor) -> Tensor:
        for first, second in zip(names[::2], names[1::2], strict=True):
            outputs[first] = getattr(self, first)(x)
            outputs[second] = getattr(self, second)(outputs[first])
        return torch.stack([outputs[name] for name in names]).sum(0)

    model = Net(code, **{name: Noted(name, notes) for name in names})
    graph = baechi.profile(
        model, values(), cluster=baechi.Cluster.virtual(1), no_split_module_classes=[Noted]
    )
    cluster = baechi.Cluster.virtual(3)
    baechi.assign(model, baechi.place(graph, cluster, f"random:{seed}"), reorder=reorder)
    with cluster:
        result = model(values())
        notes.clear()
        result.sum().backward()
    binding = binding_of(model)
    assert binding is not None and binding.runtime.counts["deferred"] > 0
    order = binding.runtime.launched
    assert order != names
    assert notes == order[::-1]
    numbers = [outputs[name].grad_fn._sequence_nr() for name in order]  # type: ignore[union-attr]
    assert numbers == sorted(numbers)
    for name, output in outputs.items():  # and inside a layer the nodes count up, too
        (inner, _), *_ = output.grad_fn.next_functions  # type: ignore[union-attr]
        assert inner._sequence_nr() < output.grad_fn._sequence_nr(), name  # type: ignore[union-attr]
