"""What was wrong with the runtime of the first implementation, one test each; numbers as in the reference."""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
import torch
from order.interleaved import distribute, layers_on
from torch import Tensor, nn

import baechi
from baechi.backend.virtual.devices import VirtualDevices
from baechi.run.runtime import binding_of
from baechi.run.step import loans, step

LAUNCHERS = ("host", "threads")
EVERY_WAY = (*LAUNCHERS, True, False)


class Net(nn.Module):
    """Layers by name around a function that is its forward."""

    def __init__(self, code: Callable[..., Any], **layers: nn.Module) -> None:
        super().__init__()
        self.code = code
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.code(self, *args, **kwargs)


def linear(width: int = 8) -> nn.Module:
    """A layer whose weights are always the same."""
    layer = nn.Linear(width, width)
    with torch.no_grad():
        for weight in layer.parameters():
            weight.copy_(torch.linspace(-0.4, 0.6, weight.numel()).view_as(weight))
    return layer


def values(rows: int = 3, width: int = 8) -> Tensor:
    """An input that is always the same."""
    return torch.linspace(-1, 1, rows * width).view(rows, width)


def launched(model: nn.Module, device: str) -> list[str]:
    """What a device launched in the last step, in order."""
    binding = binding_of(model)
    assert binding is not None
    runtime = binding.runtime
    return [layer for layer in runtime.launched if runtime.plan.device_of[layer] == device]


def forced(model: nn.Module) -> list[str]:
    """What was forced in the last step."""
    binding = binding_of(model)
    assert binding is not None
    return [str(one) for one in binding.runtime.forced]


def two_chains(self: Any, x: Tensor) -> Tensor:
    """`a` waits where the plan says `b` first; so does the glue on it."""
    h = self.a(x) * 2
    k = torch.relu(self.b(x))
    result: Tensor = self.c(h + k)
    return result


def chains() -> Net:
    """Two layers side by side, and one that joins them."""
    return Net(two_chains, a=linear(), b=linear(), c=linear())


WHERE, ORDER = {"a": 0, "b": 0, "c": 1}, "bac"


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
        assert launched(model, "cpu:0") == ["b", "a"]


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
        SEEN[id(self)] = (*modes, torch.get_default_dtype(), torch.get_num_threads())
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
    assert forced(model) == []
    assert launched(model, "cpu:0") == ([] if reorder is False else ["b", "a"])
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
@pytest.mark.parametrize("seed", range(4))
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


@pytest.mark.parametrize("reorder", EVERY_WAY)
def test_r5_copies_are_never_stale(reorder: Any) -> None:
    """R5: a tensor at the address of one that is gone is another tensor, and so is one that was written."""

    def code(self: Any, x: Tensor) -> Tensor:
        total = torch.zeros_like(x)
        for factor in range(1, 21):
            total = total + self.b(self.a(x) * factor)  # each made where the last one was
        h = self.a(x) * 1
        first = self.b(h)
        h += 1
        return total + first * self.b(h)

    plain, model = (Net(code, a=linear(), b=linear()) for _ in range(2))
    expected = plain(values())
    cluster = distribute(model, values(), {"a": 0, "b": 1}, ["a"], reorder=reorder)
    with cluster:
        assert torch.equal(model(values()), expected)


def test_r5_a_copy_is_made_once() -> None:
    """R5: a tensor travels once to each device that reads it, however many layers there do."""

    def code(self: Any, x: Tensor) -> Tensor:
        h = self.a(x)
        result: Tensor = self.b(h) + self.c(h) + self.d(h)
        return result

    model = Net(code, a=linear(), b=linear(), c=linear(), d=linear())
    cluster = distribute(model, values(), {"a": 0, "b": 1, "c": 1, "d": 1}, "adcb")
    with cluster:
        model(values())
        counters = baechi.last_step(model).counters
    assert counters["transfers"] == 3  # the input there, `h` over, the output back
    assert counters["transfer_bytes"] == 3 * values().nbytes


def freed_early(self: Any, x: Tensor) -> Tensor:
    """Copies and their sources go as soon as the code lets go of them."""
    total = self.b(self.a(x))
    for _ in range(3):
        total = self.b(self.a(total))
    result: Tensor = total
    return result


def test_r6_memory_of_copies_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """R6: both ends' allocators are told of each transfer; untold, memory is reused too early."""
    used: list[str] = []
    original = VirtualDevices.use

    def use(self: VirtualDevices, tensor: Tensor, stream: Any) -> None:
        used.append("" if stream is None else stream.name)
        original(self, tensor, stream)

    with torch.no_grad():
        model = Net(freed_early, a=linear(), b=linear())
        cluster = distribute(model, values(), {"a": 0, "b": 1}, ["a"])
        monkeypatch.setattr(VirtualDevices, "use", use)
        with cluster:
            model(values())
        there = ["cpu:0>cpu:1/tx", "cpu:1/compute"]
        assert [name for name in used if name in there] == there * 4
        monkeypatch.setattr(VirtualDevices, "use", lambda self, tensor, stream: None)
        with pytest.raises(baechi.StreamRaceError, match="may still be using it"), cluster:
            model(values())


def test_r7_written_while_it_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """R7: what writes a tensor in place comes after the transfers that read it."""

    def code(self: Any, x: Tensor) -> Tensor:
        h = self.a(x)
        k = self.b(h)
        with torch.no_grad():
            h += 1
        result: Tensor = self.a(h) + k
        return result

    plain, model = (Net(code, a=linear(), b=linear()) for _ in range(2))
    with torch.no_grad():
        expected = plain(values())
        cluster = distribute(model, values(), {"a": 0, "b": 1}, ["a"])
        with cluster:
            assert torch.equal(model(values()), expected)
        for module in (step, loans):
            monkeypatch.setattr(module, "wait_for_readers", lambda tensor, backend: None)
        with pytest.raises(baechi.StreamRaceError, match="add_"), cluster:
            model(values())


def test_r8_one_pair_of_streams_for_a_pair_of_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """R8: streams do not grow with layers: a tx and an rx for each ordered pair of devices."""
    seen: dict[tuple[str, str], set[int]] = {}
    original = VirtualDevices.transfer_streams

    def transfer_streams(self: VirtualDevices, source: str, target: str) -> tuple[Any, Any]:
        tx, rx = original(self, source, target)
        seen.setdefault((source, target), set()).update(s.number for s in (tx, rx) if s is not None)
        return tx, rx

    monkeypatch.setattr(VirtualDevices, "transfer_streams", transfer_streams)
    model = Net(freed_early, a=linear(), b=linear())
    with distribute(model, values(), {"a": 0, "b": 1}, ["a"]):
        for _ in range(2):
            model(values()).sum().backward()
    between = [("cpu:0", "cpu:1"), ("cpu:1", "cpu:0")]
    assert set(seen) == {*between, ("host", "cpu:0"), ("cpu:1", "host"), ("host", "cpu:1")}
    assert [len(seen[pair]) for pair in between] == [2, 2]
    assert sum(map(len, seen.values())) == len(set().union(*seen.values()))


@pytest.mark.parametrize("reorder", EVERY_WAY)
def test_r9_keyword_arguments(reorder: Any) -> None:
    """R9: a layer takes keyword arguments, tensors among them, and those travel as well."""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.full((8,), 0.5))

        def forward(self, x: Tensor, *, by: Tensor, options: dict[str, Any]) -> Tensor:
            return x * self.weight * by + options["shift"][0] * options["times"]

    def code(self: Any, x: Tensor) -> Tensor:
        h = self.a(input=x)
        result: Tensor = self.c(h, by=self.b(x), options={"shift": [h], "times": 3})
        return result

    def build() -> Net:
        return Net(code, a=linear(), b=linear(), c=Scaled())

    plain, model = build(), build()
    with distribute(model, values(), WHERE, ORDER, reorder=reorder):
        assert torch.equal(model(values()), plain(values()))
    assert forced(model) == []


@pytest.mark.parametrize("reorder", EVERY_WAY)
def test_r10_gradients_are_those_of_the_loss(reorder: Any) -> None:
    """R10: gradients are the plain model's, bit for bit, whatever the loss is."""
    plain, model = chains(), chains()
    cluster = distribute(model, values(), WHERE, ORDER, reorder=reorder)
    (plain(values()).pow(2).sum() * 7).backward()
    with cluster:
        (model(values()).pow(2).sum() * 7).backward()
    for one, other in zip(plain.parameters(), model.parameters(), strict=True):
        assert one.grad is not None and other.grad is not None
        assert torch.equal(one.grad, other.grad)


@pytest.mark.parametrize("reorder", EVERY_WAY)
def test_r11_inference(reorder: Any) -> None:
    """R11: a model trained on several devices is evaluated there, too, under every way to turn off grad."""
    plain, model = chains().eval(), chains().eval()
    cluster = distribute(model, values(), WHERE, ORDER, reorder=reorder)
    with cluster:
        for mode in (torch.no_grad, torch.inference_mode, torch.enable_grad):
            with mode():
                one, other = plain(values()), model(values())
            assert torch.equal(one, other) and one.requires_grad == other.requires_grad


def test_r12_memory_is_each_device_s_own() -> None:
    """R12: the memory that a plan may use is that of the device, and no device goes above it in a step."""
    model = Net(two_chains, a=linear(64), b=linear(64), c=linear(64))
    limit_bytes = 80_000  # two layers and their gradients, and some activations; not three
    cluster = baechi.Cluster.virtual(2, memory=limit_bytes)
    baechi.distribute(model, values(4, 64), cluster=cluster, placer="m-etf")
    assert sorted(baechi.plan_of(model).devices_used) == ["cpu:0", "cpu:1"]
    with cluster:
        model(values(4, 64)).sum().backward()
        peaks = baechi.last_step(model).peak_bytes
    assert all(2 * 64 * 65 * 4 <= peak <= limit_bytes for peak in peaks.values())
    assert sum(peaks.values()) > limit_bytes
    baechi.restore(model)
    with pytest.raises(baechi.PlacementError, match="cpu:0"):
        baechi.distribute(model, values(4, 64), cluster=cluster, placer="single")


@pytest.mark.parametrize("reorder", EVERY_WAY)
def test_r13_shared_weights(reorder: Any) -> None:
    """R13: layers that share weights are placed together; memory and order are still the plan's."""

    def code(self: Any, x: Tensor) -> Tensor:
        h = self.first(x)
        k = self.middle(x)
        result: Tensor = self.last(h + self.other(k))
        return result

    def build() -> Net:
        net = Net(code, first=linear(), middle=linear(), other=linear(), last=linear())
        net.last.weight = net.first.weight
        return net

    plain, model = build(), build()
    where = {"first": 0, "last": 0, "middle": 0, "other": 1}
    cluster = distribute(model, values(), where, ["middle", "other", "first", "last"], reorder=reorder)
    plain(values()).sum().backward()
    with cluster:
        model(values()).sum().backward()
    plan = baechi.plan_of(model)
    assert model.last.weight is model.first.weight
    assert torch.equal(plain.first.weight.grad, model.first.weight.grad)
    if reorder is not False:
        assert [launched(model, d) for d in cluster.names] == [layers_on(plan, d) for d in cluster.names]
        assert forced(model) == []


@pytest.mark.parametrize("reorder", EVERY_WAY)
def test_r14_the_host_runs_ahead(reorder: Any) -> None:
    """R14: where nothing is read, the host does not wait for devices, in forward, between steps or after."""
    slow = baechi.Device("cpu:0", "slow", 10**9, flops_per_s={"float32": 1e6}, bytes_per_s=1e6)
    devices = (slow, baechi.Device(**{**slow.body(), "name": "cpu:1"}))
    cluster = baechi.Cluster(devices, emulated=True, launch_s=1e-9)
    model = chains()
    distribute(model, values(64), WHERE, ORDER, cluster=cluster, reorder=reorder)
    with cluster:
        x = values(64).to("cpu:0")
        before_s = cluster.emulation.now_s
        loss = model(x).sum()
        after_forward_s = cluster.emulation.now_s
        loss.backward()
        after_backward_s = cluster.emulation.now_s
        measured = baechi.last_step(model)
    assert after_backward_s - before_s < 1e-5 < measured.makespan_s / 1000
    assert after_forward_s < after_backward_s
    ends = {
        phase: max(span.end_s for span in measured.spans if span.phase == phase)
        for phase in ("forward", "backward")
    }
    assert after_forward_s - before_s < ends["forward"] / 1000 < ends["backward"]


@pytest.mark.parametrize("reorder", EVERY_WAY)
def test_r14_nothing_to_clear_by_hand(reorder: Any) -> None:
    """R14: steps follow each other without anything between them, and each is like the first."""
    plain, model = chains(), chains()
    cluster = distribute(model, values(), WHERE, ORDER, reorder=reorder)
    threads = threading.active_count()
    orders, counters, makespans_s = [], [], []
    with cluster:
        for number in range(3):
            x = values() + number
            assert torch.equal(model(x), plain(x))
            measured = baechi.last_step(model)
            orders.append([launched(model, device) for device in cluster.names])
            counters.append(dict(measured.counters))
            makespans_s.append(measured.makespan_s)
            assert threading.active_count() == threads
    assert orders == orders[:1] * 3
    assert counters == counters[:1] * 3
    assert makespans_s == pytest.approx(makespans_s[:1] * 3, rel=1e-9)
