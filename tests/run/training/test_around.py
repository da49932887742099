"""Training in a thread, and inside and outside of `with cluster:` in turn."""

import threading
from dataclasses import replace

import pytest
import torch
from architectures.base import noise, seeded
from run.training.towers import (
    PLACES,
    assert_equal,
    batch,
    loss_on,
    momentum,
    out_of_memory,
    places_of,
    planned_places,
    spread,
    towers,
    train,
)
from same import identical
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

import baechi


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(self.first(x))
        return out


def two() -> tuple[nn.Module, nn.Module, baechi.Cluster]:
    """The plain model, the same on two devices, and these."""
    model, cluster = seeded(Two)(), baechi.Cluster.virtual(2)
    baechi.distribute(model, noise(5, 6), cluster=cluster, device_map={"first": 0, "last": 1})
    return seeded(Two)(), model, cluster


def test_training_in_a_thread_of_ones_own() -> None:
    """A thread that has no `with` of its own runs backward; the gradients lie where the weights lie."""
    plain, model, cluster = two()
    plain(noise(5, 6)).pow(2).sum().backward()
    torch.optim.SGD(plain.parameters(), lr=0.1).step()
    with cluster:
        thread = threading.Thread(target=lambda: model(noise(5, 6)).pow(2).sum().backward())
        thread.start()
        thread.join()
        places = [(str(w.device), str(w.grad.device)) for w in model.parameters() if w.grad is not None]
        assert places == [("cpu:0", "cpu:0")] * 2 + [("cpu:1", "cpu:1")] * 2
        torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert all(identical(a, b) for a, b in zip(plain.parameters(), model.parameters(), strict=True))


@pytest.mark.parametrize(
    "options", [{}, {"foreach": True}, {"fused": True}], ids=["plain", "foreach", "fused"]
)
def test_going_in_with_an_optimizer_that_stepped_outside(options: dict[str, bool]) -> None:
    """An optimizer that stepped outside goes on inside; its state lies, and counts, on the devices."""
    plain, model, cluster = two()
    optimizers = [torch.optim.Adam(each.parameters(), lr=0.1, **options) for each in (plain, model)]  # type: ignore[arg-type]

    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        model(noise(5, 6)).pow(2).mean().backward()
        optimizer.step()

    for _ in range(2):
        step(plain, optimizers[0])
    step(model, optimizers[1])
    with cluster:
        step(model, optimizers[1])
        places = {str(state["exp_avg"].device) for state in optimizers[1].state.values()}
    assert places == {"cpu:0", "cpu:1"}
    assert all(identical(a, b) for a, b in zip(plain.parameters(), model.parameters(), strict=True))


def test_names_that_look_like_another_device() -> None:
    """Whatever devices are called, each answers as a torch device of its own."""
    sheet = baechi.Cluster.virtual(1).devices[0]
    devices = (replace(sheet, name="large"), replace(sheet, name="cpu:0"))
    model = seeded(Two)()
    where = {"first": "large", "last": "cpu:0"}
    cluster = baechi.Cluster(devices, emulated=True)
    baechi.distribute(model, noise(5, 6), cluster=cluster, device_map=where)
    with cluster:
        assert model.first.weight.device != model.last.weight.device  # type: ignore[union-attr]
        bias = model.first.bias  # type: ignore[union-attr]
        bias + torch.zeros(6, device=bias.device)  # type: ignore[operator, arg-type]


def test_printing() -> None:
    """Models and tensors of any device print as they do outside."""
    model = towers()
    cluster = spread(model)
    outside = repr(model), [repr(weight) for weight in model.parameters()], f"{model.head.bias.sum():.4f}"
    with cluster:
        inside = repr(model), [repr(weight) for weight in model.parameters()], f"{model.head.bias.sum():.4f}"
    assert inside == outside


def test_one_device_takes_inputs_from_anywhere() -> None:
    """A model on one device takes inputs from the host or any device; outputs go back to where they lay."""
    plain, model = towers(), towers()
    cluster = baechi.Cluster.virtual(2)
    baechi.distribute(model, batch(), cluster=cluster, placer="single")
    expected = plain(batch())
    with cluster:
        found = [model(batch()), model(batch().to("cpu:0")), model(batch().to("cpu:1"))]
        assert [str(out.device) for out in found] == ["cpu", "cpu:0", "cpu:1"]
    assert all(identical(expected, out) for out in found)


def test_training_by_hand_on_one_device() -> None:
    """A model that nobody distributed is moved and trained by hand, as on CUDA."""

    def run(model: nn.Module, device: str) -> None:
        model.to(device)
        optimizer = momentum(model)
        for _ in range(3):
            optimizer.zero_grad()
            F.mse_loss(model(batch().to(device)), torch.ones(5, 3, device=device)).backward()
            optimizer.step()

    plain, model = towers(), towers()
    run(plain, "cpu")
    with baechi.Cluster.virtual(2):
        run(model, "cpu:1")
        assert set(places_of(model).values()) == {"cpu:1"}
    assert_equal(plain, model)


def test_a_thread_without_a_with() -> None:
    """A thread that knows nothing of the emulation calls the model, and is measured."""
    plain, model, outputs = towers().eval(), towers().eval(), []
    cluster = spread(model)

    def infer() -> None:
        with torch.no_grad():
            outputs.append(model(batch()))

    with cluster:
        thread = threading.Thread(target=infer)
        thread.start()
        thread.join()
        assert baechi.last_step(model).counters["transfers"] == 5
    assert identical(plain(batch()), outputs[0])


@pytest.mark.parametrize("outermost", [True, False], ids=["around", "inside"])
def test_counting_flops(outermost: bool) -> None:
    """A flop counter, inside of `with` or around it, counts what it counts for the plain model."""

    def count(model: nn.Module) -> int:
        with FlopCounterMode(display=False) as counter:
            loss_on(model, batch()).backward()
        return counter.get_total_flops()

    plain, model = towers(), towers()
    expected, cluster = count(plain), spread(model)
    if outermost:
        with FlopCounterMode(display=False) as counter, cluster:
            loss_on(model, batch()).backward()
        assert counter.get_total_flops() == expected
    else:
        with cluster:
            assert count(model) == expected


def test_distributing_inside() -> None:
    """Profiling and distributing inside of `with` give the graph and the numbers of outside."""
    plain, model, late = towers(), towers(), towers()
    cluster = baechi.Cluster.virtual(3)
    graph = baechi.profile(model, batch(), cluster=cluster)
    train(plain)
    with cluster:
        assert baechi.profile(model, batch(), cluster=cluster).to_json() == graph.to_json()
        baechi.distribute(model, batch(), cluster=cluster, device_map=PLACES)
        assert places_of(model) == planned_places(model)
        train(model)
        baechi.distribute(late, cluster=cluster, device_map=PLACES)  # at its first call
        train(late)
        assert places_of(late) == planned_places(late)
    assert_equal(plain, model)
    assert_equal(plain, late)


def test_restoring_inside() -> None:
    """A model that is restored inside of `with` is a plain model on the host again."""
    plain, model = towers(), towers()
    cluster = spread(model)
    train(plain)
    train(plain)
    with cluster:
        train(model)
        baechi.restore(model)
        assert set(places_of(model).values()) == {"cpu"}
        train(model)
    assert_equal(plain, model)


def test_going_out_and_in_again() -> None:
    """Training goes on in a second emulation, and between the two, as if nothing was."""
    plain, model = towers(), towers()
    cluster, optimizers = spread(model), (momentum(plain), momentum(model))

    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        loss_on(model, batch()).backward()
        optimizer.step()

    for _ in range(5):
        step(plain, optimizers[0])
    with cluster:
        step(model, optimizers[1])
        step(model, optimizers[1])
        first = baechi.last_step(model).peak_bytes
    step(model, optimizers[1])
    with cluster:
        step(model, optimizers[1])
        step(model, optimizers[1])
        assert baechi.last_step(model).peak_bytes == first
    assert_equal(plain, model)


def test_devices_named_by_hand() -> None:
    """Devices of any name are emulated; torch sees them as `cpu:0` and `cpu:1`, in their order."""
    sheet = baechi.Cluster.virtual(1).devices[0]
    devices = (replace(sheet, name="large"), replace(sheet, name="small", memory_bytes=4096))
    cluster = baechi.Cluster(devices, emulated=True)
    plain, model = towers(), towers()
    where = {"left": "small", "right": "large", "head": "small"}
    baechi.distribute(model, batch(), cluster=cluster, device_map=where)
    train(plain)
    with cluster:
        train(model)
        assert str(model.left[0].weight.device) == "cpu:1"
        assert str(model.right[0].weight.device) == "cpu:0"
        peaks = baechi.last_step(model).peak_bytes
        error = out_of_memory(lambda: loss_on(model, batch(1000)))
    assert set(peaks) == {"large", "small"}
    assert error.device == "small"
    assert_equal(plain, model)


@pytest.mark.parametrize("first", ["outside", "inside"])
def test_gradients_of_both_sides_add_up(first: str) -> None:
    """A backward outside of `with cluster:` and one inside add to the same gradients, whichever is first."""
    cluster = baechi.Cluster.virtual(2)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
    x = torch.randn(4, 8)
    graph = baechi.profile(model, x, cluster=cluster, training=True)
    expected = [2 * grad for grad in torch.autograd.grad(model(x).sum(), list(model.parameters()))]
    plan = baechi.Plan.from_device_map(graph, cluster, {"0": 0, "1": 0, "2": 1})
    baechi.assign(model, plan)

    def outside() -> None:
        model(x).sum().backward()

    def inside() -> None:
        with cluster:
            model(x).sum().backward()

    for run in (outside, inside) if first == "outside" else (inside, outside):
        run()
    assert all(
        torch.equal(weight.grad, grad)  # type: ignore[arg-type]
        for weight, grad in zip(model.parameters(), expected, strict=True)
    )
