"""Promise 2 on devices that torch keeps apart: what is done with a model works as before."""

import copy
import functools
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from architectures.base import noise, seeded
from matrix import in_turn_by_tier
from run.every_way import Rig, batch
from safetensors.torch import save_file
from torch import Tensor, nn

import baechi
from accelerator import NAMES, ToyMachine

from .devices import TWO, cluster, graph_of, there, whole

pytestmark = pytest.mark.default_cases(1)

LAUNCHERS = (False, "host", "threads")
rig = seeded(Rig)


@functools.cache
def rig_graph(training: bool) -> baechi.LayerGraph:
    """The rig's layer graph, captured once: runs of it are what the tests compare."""
    return graph_of(rig(), batch(), training)


def distributed(reorder: Any = "host", training: bool = True, placer: str = "random:3") -> nn.Module:
    """The rig over three devices."""
    plan = baechi.place(rig_graph(training), cluster(*NAMES[:3]), placer)
    assert len(plan.devices_used) == 3
    return baechi.assign(rig().train(training), plan, reorder=reorder)


def on_host(value: Any) -> Any:
    """Values on the host, nested as they are."""
    if isinstance(value, Tensor):
        return value.detach().cpu()
    if isinstance(value, dict):
        return {key: on_host(item) for key, item in value.items()}
    return [on_host(item) for item in value] if isinstance(value, (list, tuple)) else value


def assert_same(one: Any, other: Any) -> None:
    """Nested values are equal, tensors bit for bit."""
    if isinstance(one, Tensor):
        assert torch.equal(one, other), float((one - other).abs().max())
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for first, second in zip(one, other, strict=True):
            assert_same(first, second)
    else:
        assert one == other


def left(model: nn.Module) -> dict[str, Any]:
    """What a run leaves: weights, buffers, gradients."""
    return {**model.state_dict(), **{f"{name}.grad": p.grad for name, p in model.named_parameters()}}


def same(run: Callable[[Any], Any], reorder: Any, *, training: bool = True) -> nn.Module:
    """Run something with the plain model and a distributed one: all is the same."""
    plain, model = whole(rig).train(training), distributed(reorder, training)
    torch.manual_seed(5)
    expected = on_host((run(plain), left(plain)))
    torch.manual_seed(5)
    assert_same(expected, on_host((run(model), left(model))))
    return model


def x(rows: int = 5, seed: int = 1) -> Tensor:
    return there(batch(rows, seed))


every_launcher = pytest.mark.parametrize("reorder", LAUNCHERS)


@pytest.mark.parametrize(
    ("kind", "reorder"), in_turn_by_tier(["sgd", "adam", "foreach", "fused", "made-before"], LAUNCHERS)
)
def test_optimizers(toy: ToyMachine, reorder: Any, kind: str) -> None:
    """Five steps; weights stay the same objects."""

    def run(model: nn.Module, optimizer: Any = None) -> list[Tensor]:
        options: dict[str, Any] = {"foreach": {"foreach": True}, "fused": {"fused": True}}.get(kind, {})
        made = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9) if kind == "sgd" else None
        optimizer = optimizer or made or torch.optim.Adam(model.parameters(), 1e-2, **options)
        losses = []
        for number in range(5):
            optimizer.zero_grad()
            loss = model(x(seed=number)).square().mean()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9)
            optimizer.step()
            losses.append(loss)
        return losses

    if kind != "made-before":
        same(run, reorder)
        return
    model, plain = rig(), whole(rig)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    plan = baechi.place(graph_of(model, batch(), True), cluster(*NAMES[:3]), "random:3")
    baechi.assign(model, plan, reorder=reorder, optimizer=optimizer)
    assert_same(on_host(run(plain)), on_host(run(model, optimizer)))


@every_launcher
def test_evaluation_and_grad_modes(toy: ToyMachine, reorder: Any) -> None:
    """no_grad, inference_mode, and gradients of inputs."""

    def run(model: nn.Module) -> list[Any]:
        given = x().requires_grad_()
        with torch.no_grad():
            first = model(given)
        with torch.inference_mode():
            second = model(given).clone()
        third = model(given)
        (grad,) = torch.autograd.grad(third.sum(), given)
        return [first, second.cpu(), third, grad]

    same(run, reorder, training=False)


@every_launcher
def test_double_backward(toy: ToyMachine, reorder: Any) -> None:
    """A penalty on gradients of inputs (each tensor's gradient sums differ only by rounding)."""

    def run(model: nn.Module) -> list[Tensor]:
        given = x().requires_grad_()
        (grad,) = torch.autograd.grad(model(given).tanh().sum(), given, create_graph=True)
        grad.square().sum().backward()
        return [p.grad.detach().cpu() for p in model.parameters() if p.grad is not None]

    plain, model = whole(rig).eval(), distributed(reorder, False)
    for one, other in zip(run(plain), run(model), strict=True):
        assert torch.allclose(one, other, atol=1e-5)


@every_launcher
def test_hooks(toy: ToyMachine, reorder: Any) -> None:
    """Of modules and of tensors: each sees what it would see."""

    def run(model: nn.Module) -> list[Any]:
        seen: list[Any] = []
        forward = model.mix.register_forward_hook(
            lambda module, given, out: seen.append(out.detach().clone())
        )
        backward = model.mix.register_full_backward_hook(
            lambda module, into, out: seen.append(out[0].clone())
        )
        tensor = model.mix.weight.register_hook(lambda grad: grad * 2)
        model(x()).square().sum().backward()
        for handle in (forward, backward, tensor):
            handle.remove()
        return seen

    same(run, reorder)


@every_launcher
def test_accumulation_and_retained_graphs(toy: ToyMachine, reorder: Any) -> None:
    """Two losses of one graph, and gradients added up over calls."""

    def run(model: nn.Module) -> list[Any]:
        out = model(x())
        out.sum().backward(retain_graph=True)
        out.square().sum().backward()
        model(x(seed=2)).sum().backward()
        return [out]

    plain, model = whole(rig).train(), distributed(reorder)
    expected, found = on_host((run(plain), left(plain))), on_host((run(model), left(model)))
    assert_same(expected[0], found[0])
    for name, value in expected[1].items():
        assert torch.allclose(value, found[1][name], atol=1e-5), name


@every_launcher
def test_copies(toy: ToyMachine, reorder: Any) -> None:
    """A deep copy and a pickle compute with weights of their own, on the same devices."""
    model = distributed(reorder, False)
    expected = model(x()).cpu()
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        with torch.no_grad():
            assert torch.equal(copied(x()).cpu(), expected)
            for weight in copied.parameters():
                weight.zero_()
        assert torch.equal(model(x()).cpu(), expected)
        assert [p.device for p in copied.parameters()] == [p.device for p in model.parameters()]


def test_checkpoints(toy: ToyMachine, tmp_path: Path) -> None:
    """state_dict there and back, torch.save, and safetensors straight onto the devices."""
    plain, model = whole(rig).eval(), distributed("host", False)
    expected = plain(x()).cpu()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    stored = io.BytesIO()
    torch.save(state, stored)
    for weight in model.parameters():
        weight.data.zero_()
    stored.seek(0)
    model.load_state_dict(torch.load(stored))
    assert torch.equal(model(x()).cpu(), expected)
    model.load_state_dict({name: tensor.cpu() for name, tensor in state.items()}, assign=True)
    assert torch.equal(model(x()).cpu(), expected)
    assert {str(p.device) for p in model.parameters()} == set(NAMES[:3])

    save_file({name: tensor.cpu().contiguous() for name, tensor in state.items()}, tmp_path / "m.safetensors")
    with torch.device("meta"):
        empty = Rig().eval()
    plan = baechi.place(graph_of(empty, batch(), False), cluster(*NAMES[:3]), "random:3")
    weights = list(empty.parameters())
    baechi.assign(empty, plan)
    baechi.load(empty, tmp_path)
    assert all(one is other for one, other in zip(weights, empty.parameters(), strict=True))
    assert torch.equal(empty(x()).cpu(), expected)


def test_restore_and_again(toy: ToyMachine) -> None:
    """To the host, to a device, and distributed anew."""
    model = rig().eval()
    plain = whole(rig).eval()
    expected = plain(x()).cpu()
    for place in ("cpu", "toy:1"):
        plan = baechi.place(graph_of(model, batch(), False), TWO, "random:1")
        baechi.assign(model, plan)
        assert torch.equal(model(x()).cpu(), expected)
        baechi.restore(model, place)
        assert {str(p.device) for p in model.parameters()} == {place}
        if place != "cpu":
            assert torch.equal(model(there(batch(), place)).cpu(), expected)
            model.cpu()


@pytest.mark.full
def test_distribute_in_one_call(toy: ToyMachine) -> None:
    """The three lines: devices are found, layers measured, the plan runs; single where that is faster."""
    plain = whole(rig)
    for placer in ("auto", "m-etf", "random:2"):
        model = rig()
        baechi.distribute(model, batch(), placer=placer)
        assert {torch.device(name).type for name in baechi.plan_of(model).devices_used} == {"toy"}
        assert torch.equal(model(batch()), plain(x()).cpu())  # from the host, and back
        plain = whole(rig)


def test_devices_that_the_model_asks_for(toy: ToyMachine) -> None:
    """Code that makes tensors "on the device of x" works, wherever its parts lie."""

    class Asks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            a = self.a(x)
            mask = torch.ones(8, device=a.device).to(x.device)
            b = self.b(a * mask + torch.arange(8, device=x.device))
            return b.to(x.device) + torch.zeros_like(x).to(b)

    model = seeded(Asks)()
    plain = whole(lambda: copy.deepcopy(model))
    plan = baechi.Plan.from_device_map(graph_of(model, noise(3, 8), True), TWO, {"": 0, "b": 1})
    baechi.assign(model, plan)
    out = model(there(noise(3, 8)))
    assert str(out.device) == "toy:0" and torch.equal(out.cpu(), plain(there(noise(3, 8))).cpu())


@every_launcher
def test_transforms(toy: ToyMachine, reorder: Any) -> None:
    """torch.func with other weights, and over a batch of batches: what travels there is wrapped."""

    def run(model: nn.Module) -> list[Any]:
        weights = {name: tensor.detach() * 2 for name, tensor in model.named_parameters()}
        called = torch.func.functional_call(model, weights, (x(),))
        return [called, torch.vmap(model)(torch.stack([x(seed=seed) for seed in range(3)]))]

    plain, model = whole(rig).eval(), distributed(reorder, False)
    for one, other in zip(on_host(run(plain)), on_host(run(model)), strict=True):
        assert torch.allclose(one, other, atol=1e-6)


def test_gradients_of_transforms_stay_on_one_device(toy: ToyMachine) -> None:
    """Torch itself cannot take them over two devices: its engine asks a wrapper for its memory."""
    with pytest.raises(NotImplementedError, match="storage of TensorWrapper"):
        torch.func.grad(lambda given: (given.to("toy:1") * 2).sum())(x())
