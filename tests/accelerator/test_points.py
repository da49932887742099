"""What went wrong on devices that torch keeps apart, one test each."""

import contextlib
import copy
import gc
import threading
import warnings
import weakref
from typing import Any

import pytest
import torch
from architectures.base import noise, seeded
from process_group import process_group
from run.launched import runtime_of
from run.worlds import Net
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import baechi
from accelerator import NAMES, ToyMachine
from baechi import Cluster
from baechi.backend import backend_of
from baechi.backend.real.driver import DRIVER, Driver
from baechi.backend.transfer import transfer
from baechi.errors import BaechiError
from baechi.run.reorder.outcome import Outcomes
from baechi.run.state.caller_state import CallerState
from baechi.torchlib.modules.intercept import replace_forward
from baechi.torchlib.tensors.swap_memory import exchange

from .devices import TWO, cluster, placed, there, whole

pytestmark = pytest.mark.default_cases(1)

LAUNCHERS = (False, "host", "threads")


def net(code: Any, **layers: Any) -> Any:
    return seeded(lambda: Net(code, layers))


def linear() -> nn.Module:
    return nn.Linear(8, 8)


# --- 1. gradients of transfers


def test_a_gradient_lies_where_its_input_lies(toy: ToyMachine) -> None:
    """A transfer can be differentiated, twice too, in anomaly mode too."""
    backend = backend_of(TWO)
    for anomaly in (False, True):
        with torch.autograd.set_detect_anomaly(anomaly):
            x = noise(3, 8).to("toy:0").requires_grad_()
            y = transfer(x, backend, "toy:1")
            (grad,) = torch.autograd.grad((y**3).sum(), x, create_graph=True)
            assert str(y.device) == "toy:1" and str(grad.device) == "toy:0"
            assert torch.equal(grad.cpu(), (3 * x**2).cpu())
            grad.sum().backward()
            assert x.grad is not None and torch.equal(x.grad.cpu(), (6 * x).detach().cpu())


def test_backward_overlaps(toy: ToyMachine) -> None:
    """Device 0 goes on right behind a gradient that came back, whatever device 1 has still to do."""
    came_back = threading.Event()
    waited: list[bool] = []

    def hold(grad: Tensor) -> None:
        if grad.device.type == "toy":  # else the model is being captured
            waited.append(came_back.wait(timeout=20))  # device 1 is busy until device 0 has gone on

    def code(self: Any, x: Tensor) -> Any:
        mine = self.mine(x)  # its way to device 1 begins here, before all of `far`
        far = self.first(x)
        far.register_hook(hold)
        return self.second(far).sum() + self.last(mine).sum()

    model = net(code, **dict.fromkeys(["mine", "first", "second", "last"], linear))()
    inputs = {"x": noise(3, 8)}
    model = placed(model, inputs, {"mine": 0, "first": 1, "second": 1, "last": 1}, reorder=False)
    went_on = model.mine.weight.register_post_accumulate_grad_hook(lambda weight: came_back.set())
    loss = model(**there(inputs))
    toy.synchronize()
    toy.keep_issued()
    loss.backward()
    went_on.remove()
    devices = [line[0] for line in toy.issued() if line.endswith("aten::mm")]
    assert waited == [True]
    assert "0" in devices and devices[-1] == "1"  # `first` comes last: it was held


def test_backward_runs_in_the_thread_of_the_source(toy: ToyMachine) -> None:
    """What follows a gradient's way back is issued by the device that it comes back to."""
    threads: dict[str, int] = {}

    def here(name: str) -> Any:
        def note(grad: Tensor) -> None:
            threads[name] = threading.get_ident()

        return note

    def code(self: Any, x: Tensor) -> Tensor:
        a = self.a(x)
        a.register_hook(here("a"))
        b = self.b(a)
        b.register_hook(here("b"))
        return self.c(b)

    model = net(code, a=linear, b=linear, c=linear)()
    inputs = {"x": noise(3, 8)}
    model = placed(model, inputs, {"a": 0, "b": 1, "c": 0}, reorder=False)
    model(**there(inputs)).sum().backward()
    assert threads["a"] != threads["b"]


# --- 2. weights on device types whose `.data` cannot be set


def test_weights_stay_the_same_objects(toy: ToyMachine) -> None:
    """With ties, optimizers, their state, gradients; there and back."""
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    model[2].weight = model[0].weight
    model[0].register_buffer("count", torch.zeros(3))
    optimizer = torch.optim.Adam(model.parameters())
    model(noise(3, 8)).sum().backward()
    optimizer.step()
    found = {name: (weight, weight.detach().clone()) for name, weight in model.named_parameters()}
    grads = {name: weight.grad for name, weight in model.named_parameters()}
    graph = baechi.profile(model, noise(3, 8), cluster=TWO, training=True, source="estimate")
    assert all(not weakref.getweakrefs(weight) for weight in model.parameters())
    plan = baechi.Plan.from_device_map(graph, TWO, {"0": 1, "1": 0, "2": 1})
    baechi.assign(model, plan, optimizer=optimizer)
    for name, weight in model.named_parameters():
        assert weight is found[name][0] and str(weight.device) == "toy:1" and type(weight) is nn.Parameter
        assert torch.equal(weight.cpu(), found[name][1]) and weight.grad is grads[name]
        state = optimizer.state[weight]
        assert {str(state[key].device) for key in ("exp_avg", "exp_avg_sq")} == {"toy:1"}
        assert weight.grad is not None and str(weight.grad.device) == "toy:1"
    assert model[2].weight is model[0].weight
    model(there(noise(3, 8))).sum().backward()
    optimizer.step()
    baechi.restore(model)
    assert all(weight is found[name][0] and weight.is_cpu for name, weight in model.named_parameters())
    assert all(weight.grad.is_cpu for weight in model.parameters())
    optimizer.zero_grad()
    model(noise(3, 8)).sum().backward()
    optimizer.step()


@pytest.mark.parametrize("back", [False, True])
def test_hooks_of_weights_stay(toy: ToyMachine, back: bool) -> None:
    """On the tensor, after accumulation, on the node that adds: each fires once, and can be removed."""
    weight, fired = nn.Parameter(torch.ones(3)), []
    node = torch.autograd.graph.get_gradient_edge(weight).node
    handles = [
        weight.register_hook(lambda grad: fired.append("tensor")),
        weight.register_post_accumulate_grad_hook(lambda held: fired.append(f"after {held is weight}")),
        node.register_prehook(lambda grads: fired.append("before")),
        node.register_hook(lambda added, grads: fired.append("node")),
    ]
    exchange(weight, weight.data.to("toy:1"))
    if back:
        exchange(weight, weight.data.cpu())
        weight.grad = None
    (weight * 3).sum().backward()
    assert sorted(fired) == ["after True", "before", "node", "tensor"]
    assert weight.grad is not None and weight.grad.tolist() == [3.0] * 3
    for handle in handles:
        handle.remove()
    (weight * 3).sum().backward()
    assert len(fired) == 4


def test_an_old_graph_says_so(toy: ToyMachine) -> None:
    """A backward through weights that went elsewhere loses no gradient in silence; the next one works."""
    model = nn.Linear(8, 8)
    loss = model(noise(3, 8)).sum()
    placed(model, noise(3, 8), {"": 1})
    with pytest.raises(BaechiError, match="before its model was distributed"):
        loss.backward()
    model(there(noise(3, 8))).sum().backward()
    assert str(model.weight.grad.device) == "toy:1"  # type: ignore[union-attr]


def test_weak_references_and_views_stay(toy: ToyMachine) -> None:
    """A weight with weak references moves; views of one storage stay so, without the rest of it."""
    flat = torch.arange(1000.0)
    model = nn.Linear(8, 8)
    model.register_buffer("first", flat[500:504])
    model.register_buffer("second", flat[504:508])
    reference = weakref.ref(model.weight)
    placed(model, noise(3, 8), {"": 1})
    assert reference() is model.weight
    assert model.first.untyped_storage().data_ptr() == model.second.untyped_storage().data_ptr()
    assert model.first.untyped_storage().nbytes() == 32  # what they span of it
    assert model.second.cpu().tolist() == [504.0, 505.0, 506.0, 507.0]


def test_a_parallel_model_made_before_is_refused(toy: ToyMachine, tmp_path: Any) -> None:
    """DistributedDataParallel counts on the memory that weights had; nothing has moved then."""
    with process_group(tmp_path / "store"):
        model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
        parallel = nn.parallel.DistributedDataParallel(model)
        with pytest.raises(BaechiError, match="distribute the model first"):
            placed(model, noise(3, 8), {"0": 0, "1": 1})
        assert all(weight.is_cpu for weight in model.parameters())
        del parallel
        gc.collect()
        placed(model, noise(3, 8), {"0": 0, "1": 1})


# --- 3. random numbers of checkpointed regions


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(nn.functional.dropout(self.a(x), 0.5))


class Drops(nn.Module):
    """A layer that drops, whole."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(x @ self.weight, 0.5)


@pytest.mark.parametrize("where", ["inside", "around", "from the host"])
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_regions_draw_what_they_drew(toy: ToyMachine, reentrant: bool, where: str) -> None:
    """Also layers on other devices than the region's arguments."""

    def region(self: Any, y: Tensor) -> Tensor:
        return self.c(self.b(y))

    def code(self: Any, x: Tensor, again: bool) -> Any:
        y = self.a(x)
        if again and where == "inside":
            return checkpoint(region, self, y, use_reentrant=reentrant)
        return region(self, y)

    inputs = {"x": noise(3, 8), "again": False}
    model = net(code, a=Drops, b=Drops, c=Drops)()
    model = placed(model, inputs, {"a": 1, "b": 0, "c": 1})
    home = "" if where == "from the host" else "toy:1"
    grads = []
    for again in (False, True):
        torch.manual_seed(7)
        x = there(noise(3, 8), home).requires_grad_()
        model.zero_grad()
        if again and where != "inside":
            out = checkpoint(model, x, again, use_reentrant=reentrant)
        else:
            out = model(x, again)
        out.sum().backward()
        grads.append([weight.grad.cpu() for weight in model.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*grads, strict=True))


class MeetingDrops(Drops):
    """A layer that drops; run again, it waits before and after it draws for another one that does so, too."""

    meeting = threading.Barrier(2)
    meets = False

    def forward(self, x: Tensor) -> Tensor:
        self._meet()
        dropped = super().forward(x)
        self._meet()
        return dropped

    def _meet(self) -> None:
        if self.meets and torch._C._current_graph_task_id() != -1:
            with contextlib.suppress(threading.BrokenBarrierError):  # the other one waits for us: good
                self.meeting.wait(timeout=2.0)


@pytest.mark.parametrize("reentrant", [False, True])
def test_regions_of_two_devices_do_not_draw_each_others_numbers(toy: ToyMachine, reentrant: bool) -> None:
    """Both run again at once, in the threads of their devices."""
    MeetingDrops.meeting.reset()

    def code(self: Any, x: Tensor, again: bool) -> Any:
        if again:
            return checkpoint(self.a, x, use_reentrant=reentrant) * checkpoint(
                self.b, x, use_reentrant=reentrant
            )
        return self.a(x) * self.b(x)

    inputs = {"x": noise(3, 8), "again": False}
    model = placed(net(code, a=MeetingDrops, b=MeetingDrops)(), inputs, {"a": 0, "b": 1})
    grads = []
    for number, again in enumerate((False, True, True)):
        for layer in (model.a, model.b):
            layer.meets = number == 2  # all that is imported at first is there then
        torch.manual_seed(7)
        model.zero_grad()
        x = there(noise(3, 8)).requires_grad_()
        model(x, again).sum().backward()
        grads.append([weight.grad.tolist() for weight in model.parameters()])
    assert grads[0] == grads[1] == grads[2]


# --- 4. and 5. inputs that are written after they were sent


@pytest.mark.parametrize("reorder", LAUNCHERS)
def test_an_input_that_is_written_after_it_was_sent(toy: ToyMachine, reorder: Any) -> None:
    """The write waits for the transfer, though the input was made by the caller."""

    def code(self: Any, x: Tensor) -> Any:
        y = self.b(x)
        x.mul_(2)
        return y + self.a(x)

    inputs = {"x": noise(64, 8)}
    plain, model = (net(code, a=linear, b=linear)() for _ in range(2))
    with torch.no_grad():
        model = placed(model, inputs, {"a": 0, "b": 1}, reorder=reorder, training=False)
        expected = plain.to("toy:0").eval()(there(inputs["x"].clone())).cpu()
        for seed in range(8):
            toy.restart(seed=seed)
            assert torch.equal(model.eval()(there(inputs["x"].clone())).cpu(), expected)
            assert not toy.faults()


def test_a_pinned_input_may_be_used_again(toy: ToyMachine) -> None:
    """The caller writes the next batch into the same pinned memory when the call has returned."""
    model = net(lambda self, x, y: self.a(x) + self.b(y), a=linear, b=linear)()
    plain = whole(lambda: copy.deepcopy(model))
    model = placed(model, {"x": noise(3, 8), "y": noise(3, 8)}, {"a": 0, "b": 1})
    buffer = torch.empty(64, 8).pin_memory()
    assert buffer.is_pinned()
    x = there(noise(64, 8))
    with torch.no_grad():
        for seed in range(16):
            toy.restart(seed=seed)
            buffer.copy_(noise(64, 8, seed=seed))
            expected = plain(x, there(buffer.clone()))
            found = model(x, buffer)  # comes out where the first input lies: nothing else waits
            buffer.fill_(float("nan"))
            assert torch.equal(found.cpu(), expected.cpu())


# --- 6. the current device


class Raw(nn.Module):
    """Makes a tensor on "the" device, and calls a kernel that goes to the current one."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x) + torch.zeros(8, device="toy" if x.device.type == "toy" else None)
        if x.device.type == "toy":
            torch.ops.toy.unguarded_add_(y.detach(), 1.0)
        return y


@pytest.mark.parametrize("reorder", LAUNCHERS)
def test_a_layer_runs_on_the_current_device(toy: ToyMachine, reorder: Any) -> None:
    """Kernels without a guard go where the layer is; afterwards the caller's device is the current one."""

    def code(self: Any, x: Tensor) -> Any:
        a, b = self.a(x), self.b(x)
        return self.c(a) + self.d(b)

    model = net(code, a=Raw, b=Raw, c=Raw, d=Raw)()
    inputs = {"x": noise(3, 8)}
    model = placed(model, inputs, {"a": 2, "b": 1, "c": 1, "d": 0}, reorder=reorder, training=False)
    torch.accelerator.set_device_index(3)
    try:
        model.eval()(**there(inputs, "toy:0"))
        assert torch.accelerator.current_device_index() == 3
    finally:
        torch.accelerator.set_device_index(0)


# --- 7. draws


def crossed(self: Any, x: Tensor) -> Any:
    """Layers that the plan launches in another order than the code reaches them."""
    a, b = self.a(x), self.b(x)
    c, d = self.c(a), self.d(x)
    return b + c * d


CROSSED = {"b": 1, "d": 1, "a": 0, "c": 0}


def cross(model: nn.Module, reorder: Any) -> nn.Module:
    """A model of `crossed` in which `b` waits for `d`."""
    return placed(model, {"x": noise(3, 8)}, CROSSED, reorder=reorder, order="dbac")


def test_what_draws_draws_where_the_code_reaches_it(toy: ToyMachine) -> None:
    """On one device, reordering off, by the host, by threads: the same numbers, and the same next ones."""
    results = []
    for reorder in ("whole", *LAUNCHERS):
        model = net(crossed, **dict.fromkeys("abcd", Drops))()
        model = whole(lambda model=model: model) if reorder == "whole" else cross(model, reorder)
        torch.manual_seed(3)
        out = model(**there({"x": noise(3, 8)}))
        if reorder != "whole":
            assert not runtime_of(model).counts.get("deferred", 0)
        following = torch.randn(3, device="toy:0")
        out.sum().backward()
        grads = [weight.grad.tolist() for weight in model.parameters()]
        results.append((out.tolist(), following.tolist(), grads))
    assert results[0] == results[1] == results[2] == results[3]


# --- 8. parts of one device, and callers on streams of their own


def parts(model: nn.Module, inputs: Any, where: dict[str, int], reorder: Any = False) -> nn.Module:
    """A model on two parts of one device."""
    names = cluster("toy:0/0", "toy:0/1")
    graph = baechi.profile(model.eval(), inputs, cluster=TWO, training=False, source="estimate")
    return baechi.assign(model, baechi.Plan.from_device_map(graph, names, where), reorder=reorder)


def test_a_replaced_buffer_is_kept_while_a_part_reads_it(toy: ToyMachine) -> None:
    """It was allocated on another stream than the one that uses it, and goes in the middle of a step."""

    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)
            self.register_buffer("shift", torch.ones(8))

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x) + self.shift

    def code(self: Any, x: Tensor) -> Any:
        y = self.a(x)
        self.a.shift = torch.ones(8, device=x.device)
        for _ in range(4):
            x = x + torch.zeros(8, device=x.device)
        return self.b(y)

    model = net(code, a=Shifted, b=Shifted)()
    plain = whole(lambda: copy.deepcopy(model).eval())
    model = parts(model, noise(3, 8), {"a": 0, "b": 1})
    x = there(noise(3, 8))
    with torch.no_grad():
        expected = plain(x).cpu()
        for seed in range(4):
            toy.restart(seed=seed)
            assert torch.equal(model(x).cpu(), expected) and not toy.faults()
            model.a.shift = there(torch.ones(8))


@pytest.mark.parametrize("reorder", LAUNCHERS)
@pytest.mark.parametrize("again", [None, False, True], ids=["plain", "checkpoint", "reentrant"])
def test_a_caller_on_side_streams(toy: ToyMachine, reorder: Any, again: bool | None) -> None:
    """Streams of the caller's own on both devices: forward, recomputed layers, launching threads follow."""

    model = net(crossed, **dict.fromkeys("abcd", linear))()
    plain = whole(lambda: copy.deepcopy(model))
    model = cross(model, reorder)
    before = [torch.accelerator.current_stream(index) for index in range(2)]
    sides = [torch.Stream(device=name) for name in NAMES[:2]]
    for seed in range(3):
        toy.restart(seed=seed)
        plain.zero_grad()
        plain(there(noise(3, 8))).sum().backward()
        toy.synchronize()
        try:
            for side in sides:
                torch.accelerator.set_stream(side)
            torch.accelerator.set_device_index(0)
            model.zero_grad()
            x = there(noise(3, 8)).requires_grad_()
            out = model(x) if again is None else checkpoint(model, x, use_reentrant=again)
            out.sum().backward()
            faults = toy.faults()
            grads = [weight.grad.cpu() for weight in model.parameters()]  # type: ignore[union-attr]
            del out
        finally:
            for stream in before:
                torch.accelerator.set_stream(stream)
            torch.accelerator.set_device_index(0)
        expected = [weight.grad.cpu() for weight in plain.parameters()]  # type: ignore[union-attr]
        assert not faults
        assert all(torch.allclose(one, other, atol=1e-6) for one, other in zip(grads, expected, strict=True))


# --- 9. outcomes that are inferred


def test_inferring_executes_nothing(toy: ToyMachine) -> None:
    """A layer that counts its batches counts each once, whatever waits around it."""

    layers = {"a": linear, "b": lambda: nn.BatchNorm1d(8), "c": lambda: nn.BatchNorm1d(8), "d": linear}
    model = cross(net(crossed, **layers)(), "host")
    weights = list(model.parameters())
    toy.restart()
    for number in range(1, 4):
        model(there(noise(16 + number, 8)))  # another shape: inferred anew
        assert [int(layer.num_batches_tracked) for layer in (model.b, model.c)] == [number] * 2
    assert all(one is other for one, other in zip(weights, model.parameters(), strict=True))


def test_inferring_issues_nothing(toy: ToyMachine) -> None:
    """No kernel, and no wait of the host, comes from looking ahead."""
    layer = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8)).to("toy:1")
    replace_forward(layer, lambda module, *args: None)
    x = noise(4, 8).to("toy:0")
    toy.restart()
    toy.keep_issued()
    given, caller = ((x,), {}), CallerState.now()
    outcomes = Outcomes(1)
    outcome = outcomes.of_layer(layer, outcomes.held(layer), torch.device("toy:1"), given, caller)
    assert outcome is not None and str(outcome.metas[0].device) == "toy:1"
    assert toy.issued() == [] and toy.waits() == ["restart"] * len(toy.waits())


# --- 10. autocast, generators


@pytest.mark.parametrize("reorder", LAUNCHERS)
def test_autocast_of_any_type(toy: ToyMachine, reorder: Any) -> None:
    """Layers compute under the caller's autocast."""

    model = net(crossed, **dict.fromkeys("abcd", linear))()
    plain = whole(lambda: copy.deepcopy(model))
    model = cross(model, reorder)
    with torch.autocast("toy", dtype=torch.bfloat16):
        found, expected = model(there(noise(3, 8))), plain(there(noise(3, 8)))
    assert found.dtype == expected.dtype == torch.bfloat16
    assert torch.equal(found.cpu(), expected.cpu())


def test_generators_of_any_type_are_left_as_found(toy: ToyMachine) -> None:
    """Capturing, measuring and comparing draw nothing from the caller's generators."""
    module = torch.get_device_module("toy")
    model = net(lambda self, x: self.b(self.a(x)), a=Drops, b=Drops)()
    torch.manual_seed(11)
    torch.randn(3, device="toy:1")
    before = [module.get_rng_state(index).tolist() for index in range(4)]
    model = placed(model, noise(3, 8), {"a": 0, "b": 1})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for inputs in (there(noise(3, 8)), noise(3, 8)):
            assert baechi.check(model.eval(), inputs).ran[0].name == "one device"
    assert [module.get_rng_state(index).tolist() for index in range(4)] == before


# --- 14. the driver is asked once


def test_a_warm_step_asks_and_waits_for_nothing(toy: ToyMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs on a device: no synchronisation, forward and backward; no question about streams."""

    def code(self: Any, x: Tensor) -> Any:
        a, b = self.a(x), self.b(x)
        c, d = self.c(a), self.d(b)
        return self.e(c * d).sum()

    for reorder in LAUNCHERS:
        model = net(code, **dict.fromkeys("abcde", linear))()
        model = placed(model, {"x": noise(3, 8)}, {"a": 1, "b": 0, "c": 0, "d": 1, "e": 1}, reorder=reorder)
        x = noise(3, 8).to("toy:0")
        model(x).backward()
        asked: list[Any] = []

        def noted(self: Driver, device: Any, asked: list[Any] = asked) -> bool:
            asked.append(device)
            return True

        with monkeypatch.context() as patch:
            patch.setattr(Driver, "has_streams", noted)
            toy.restart(seed=5)
            waited = len(toy.waits())
            model(x).backward()
            assert toy.waits()[waited:] == [] and asked == []


def test_links_and_devices_are_found(toy: ToyMachine) -> None:
    """The devices that torch sees, with memory of their own."""
    found = Cluster.discover()
    assert found.names == NAMES and all(device.memory_bytes > 0 for device in found.devices)
    assert DRIVER.kind == "toy" and backend_of(found).generators() == [torch.device(name) for name in NAMES]


@pytest.mark.parametrize("microbatches", (None, 2))
def test_a_batch_may_lie_on_a_device_before_the_weights_do(toy: ToyMachine, microbatches: int | None) -> None:
    """A batch that a loader has put on a GPU, and a model fresh on the host: as their user has them."""
    model, plain = seeded(Shifted)().double(), seeded(Shifted)().double()
    batch = torch.arange(4).to("toy:0")
    baechi.distribute(model, batch, cluster=TWO, device_map={"embed": 0, "out": 1}, microbatches=microbatches)
    loss = model(batch).square().mean()
    loss.backward()
    expected = plain(batch.cpu()).square().mean()
    expected.backward()
    assert loss.cpu().item() == pytest.approx(expected.item(), rel=1e-12)
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert one.grad is not None and other.grad is not None
        assert torch.allclose(one.grad.cpu(), other.grad, rtol=1e-10, atol=1e-12)


class Shifted(nn.Module):
    """An embedding and a layer, and a tensor that the code makes where its input lies."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(10, 8), nn.Linear(8, 8)

    def forward(self, codes: Tensor) -> Tensor:
        embedded: Tensor = self.embed(codes) + torch.arange(8.0, device=codes.device)
        result: Tensor = self.out(embedded)
        return result
