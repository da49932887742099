"""Training inside `with cluster:` gives the numbers of the plain model trained outside of it."""

import copy
import io
import pickle
import re
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import pytest
import torch
from architectures import HELD_IN, Architecture, loss_of
from same import identical
from torch import nn
from torch.autograd.graph import save_on_cpu
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.flop_counter import FlopCounterMode

import baechi
from baechi import zoo
from baechi.torchlib.tensors.pytree import map_tensors

Parameters = Iterable[nn.Parameter]
Optimizers = Callable[[Parameters], torch.optim.Optimizer]

OPTIMIZERS: dict[str, Optimizers] = {
    "momentum": lambda weights: torch.optim.SGD(weights, lr=0.01, momentum=0.9),
    "adam": lambda weights: torch.optim.Adam(weights, lr=0.001, foreach=False),
    "foreach": lambda weights: torch.optim.Adam(weights, lr=0.001, foreach=True),
    "fused": lambda weights: torch.optim.Adam(weights, lr=0.001, fused=True),
}

EXACT = ("gpt2",)
"""No gradient in these is a sum of three or more that a placement may take in another order."""

SINGLE_ONLY = ("mixtral",)
"""Torch multiplies groups of matrices in single precision only."""


def our_own(name: str) -> Architecture:
    """A model of the zoo as an architecture."""

    def inputs() -> dict[str, torch.Tensor]:
        given = zoo.MODELS[name]("small")[1]
        return dict(zip(("source", "target") if len(given) == 2 else ("images",), given, strict=True))

    return Architecture(name, lambda: zoo.MODELS[name]("small")[0], inputs)


def doubled(plain: Architecture) -> Architecture:
    """An architecture in double precision."""

    def double(value: Any) -> Any:
        return map_tensors(lambda t: t.double() if t.is_floating_point() else t, value)

    return Architecture(plain.name, lambda: plain.build().double(), lambda: double(plain.inputs()))


SINGLE = {a.name: a for a in (*[our_own(name) for name in zoo.MODELS], *HELD_IN)}
MODELS = {name: plain if name in (*EXACT, *SINGLE_ONLY) else doubled(plain) for name, plain in SINGLE.items()}
TOLERANCE = {name: 0.0 if name in EXACT else 2e-5 if name in SINGLE_ONLY else 1e-9 for name in MODELS}


def trained(
    model: nn.Module, inputs: dict[str, Any], optimizer: Optimizers, *, clipped: bool
) -> list[torch.Tensor]:
    """Three steps of training, seeded; the losses."""
    torch.manual_seed(3)
    model.train()
    weights, losses = optimizer(model.parameters()), []
    for _ in range(3):
        weights.zero_grad()
        loss = loss_of(model(**inputs))
        loss.backward()
        if clipped:
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        weights.step()
        losses.append(loss.detach())
    return losses


@cache
def graph_of(architecture: Architecture) -> baechi.LayerGraph:
    cluster = baechi.Cluster.virtual(1)
    return baechi.profile(architecture.build(), architecture.inputs(), cluster=cluster, training=True)


def distributed(
    architecture: Architecture, n: int, placer: str, *, reorder: bool = True
) -> tuple[nn.Module, baechi.Cluster]:
    """The architecture on n emulated devices."""
    cluster = baechi.Cluster.virtual(n)
    plan = baechi.place(graph_of(architecture), cluster, placer)
    assert len(plan.devices_used) == n
    return baechi.assign(architecture.build(), plan, reorder=reorder), cluster


def assert_equal(one: nn.Module, other: nn.Module, *, tolerance: float = 0.0) -> None:
    """Parameters and buffers equal, bit for bit or within a tolerance."""
    for (name, a), (_, b) in zip(one.state_dict().items(), other.state_dict().items(), strict=True):
        assert identical(a, b) or float((a - b).abs().max()) <= tolerance, name


@pytest.mark.parametrize(("name", "optimizer"), list(product(MODELS, OPTIMIZERS)))
def test_three_devices(name: str, optimizer: str) -> None:
    """Losses, weights and buffers after three steps of each optimizer, half of them with clipping."""
    clipped = (list(MODELS).index(name) + list(OPTIMIZERS).index(optimizer)) % 2 == 0
    architecture, tolerance = MODELS[name], TOLERANCE[name]
    plain = architecture.build()
    expected = trained(plain, architecture.inputs(), OPTIMIZERS[optimizer], clipped=clipped)
    # backward is the launch order in reverse, so in another order than the code's sums round otherwise
    model, cluster = distributed(architecture, 3, "random:1", reorder=name not in EXACT)
    with cluster:
        losses = trained(model, architecture.inputs(), OPTIMIZERS[optimizer], clipped=clipped)
    for one, other in zip(expected, losses, strict=True):
        assert abs(float(one - other)) <= tolerance * max(1.0, abs(float(one)))
    assert_equal(plain, model, tolerance=tolerance)


@pytest.mark.parametrize("name", SINGLE)
def test_one_device(name: str) -> None:
    """On one emulated device everything is exact, in single precision."""
    index = list(SINGLE).index(name)
    optimizer = list(OPTIMIZERS.values())[index % 4]
    architecture, plain = SINGLE[name], SINGLE[name].build()
    expected = trained(plain, architecture.inputs(), optimizer, clipped=index % 3 == 0)
    model, cluster = distributed(architecture, 1, "single")
    with cluster:
        losses = trained(model, architecture.inputs(), optimizer, clipped=index % 3 == 0)
    assert all(identical(a, b) for a, b in zip(expected, losses, strict=True))
    assert_equal(plain, model)


# --- what training code does besides


class Towers(nn.Module):
    """Two branches that meet, on a device each, and a head on a third."""

    def __init__(self, reentrant: bool | None = None) -> None:
        super().__init__()
        self.left = nn.Sequential(nn.Linear(6, 8), nn.ReLU(inplace=True), nn.Linear(8, 8))
        self.right = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.BatchNorm1d(8))
        self.head = nn.Linear(16, 3)
        self.reentrant = reentrant

    def branches(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.left(x), self.right(x)], dim=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        joined: torch.Tensor
        if self.reentrant is None:
            joined = self.branches(x)
        else:
            joined = checkpoint(self.branches, x, use_reentrant=self.reentrant)
        out: torch.Tensor = self.head(joined)
        return out


PLACES = {"left": "cpu:0", "right": "cpu:1", "head": "cpu:2"}


def towers(reentrant: bool | None = None) -> Towers:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Towers(reentrant)


def batch(rows: int = 5) -> torch.Tensor:
    return torch.randn(rows, 6, generator=torch.Generator().manual_seed(1))


def spread(model: nn.Module, memory: str = "1MiB") -> baechi.Cluster:
    cluster = baechi.Cluster.virtual(3, memory=memory)
    baechi.distribute(model, batch(), cluster=cluster, device_map=PLACES)
    return cluster


def loss_on(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return F.mse_loss(model(x).float(), torch.ones(len(x), 3))


def momentum(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def train(model: nn.Module, x: torch.Tensor | None = None) -> None:
    """Three steps on a batch."""
    optimizer, x = momentum(model), batch() if x is None else x
    for _ in range(3):
        optimizer.zero_grad()
        loss_on(model, x).backward()
        optimizer.step()


def assert_trains_as_plain(run: Callable[[nn.Module], Any]) -> None:
    """A way to train leaves the weights that it leaves outside, and returns the same."""
    plain, model = towers(), towers()
    expected, cluster = run(plain), spread(model)
    with cluster:
        found = run(model)
    assert found == expected
    assert_equal(plain, model)


def places_of(model: nn.Module) -> dict[str, str]:
    """Where each weight lies, as it says itself inside of `with`."""
    return {name: str(weight.device) for name, weight in model.state_dict().items()}


def homes(model: nn.Module) -> dict[str, str]:
    """Where each weight belongs."""
    return {name: PLACES[name.partition(".")[0]] for name in model.state_dict()}


@pytest.mark.parametrize("scale", [1024.0, 2.0**127], ids=["finite", "overflowing"])
def test_autocast_and_gradient_scaling(scale: float) -> None:
    """Mixed precision with a gradient scaler, also where gradients overflow and a step is left out."""

    def run(model: nn.Module) -> float:
        optimizer, scaler = momentum(model), torch.amp.GradScaler("cpu", init_scale=scale)
        for _ in range(3):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = loss_on(model, batch())
            scaler.scale(loss * 8).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
        return scaler.get_scale()

    assert_trains_as_plain(run)


@pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "hooks"])
def test_checkpointing(reentrant: bool) -> None:
    """Both kinds of activation checkpointing, over branches that lie on two devices."""
    plain, model = towers(reentrant), towers(reentrant)
    cluster = spread(model)
    train(plain, batch().requires_grad_())
    with cluster:
        train(model, batch().requires_grad_())
    assert_equal(plain, model)


def test_saving_on_the_host() -> None:
    """`save_on_cpu` keeps what autograd saves on the host, and brings it back to each device."""

    def run(model: nn.Module) -> list[str]:
        with save_on_cpu():
            loss = loss_on(model, batch())
        loss.backward()
        momentum(model).step()
        return []

    assert_trains_as_plain(run)


def test_saving_on_the_host_frees_devices() -> None:
    """What `save_on_cpu` moved to the host takes no memory of a device until backward."""

    class Squares(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(4):
                x = x * x  # saves x, and nothing else
            return x.sum()

    def peak_bytes(saving: bool) -> int:
        model, cluster = Squares(), baechi.Cluster.virtual(1)
        baechi.distribute(model, torch.ones(64), cluster=cluster)
        with cluster:
            x = torch.ones(64, requires_grad=True)
            if saving:
                with save_on_cpu():
                    model(x)
            else:
                model(x)
            return baechi.last_step(model).peak_bytes["cpu:0"]

    assert peak_bytes(saving=False) == 5 * 256 + 4  # the input, four squares, the sum
    assert peak_bytes(saving=True) == 3 * 256  # the step's copy of the input, a square and its root


def test_retain_graph() -> None:
    """A second backward through the same graph adds the same gradients again."""

    def run(model: nn.Module) -> list[Any]:
        loss = loss_on(model, batch())
        loss.backward(retain_graph=True)
        loss.backward()
        momentum(model).step()
        return [weight.grad.tolist() for weight in model.parameters() if weight.grad is not None]

    assert_trains_as_plain(run)


def test_data_loader_workers() -> None:
    """Batches that worker processes make, started inside of `with`, arrive as they were made."""
    x = torch.randn(15, 6, generator=torch.Generator().manual_seed(2))

    def run(model: nn.Module) -> int:
        optimizer, batches = momentum(model), 0
        for rows, targets in DataLoader(TensorDataset(x, torch.ones(15, 3)), batch_size=5, num_workers=2):
            optimizer.zero_grad()
            F.mse_loss(model(rows), targets).backward()
            optimizer.step()
            batches += 1
        return batches

    assert_trains_as_plain(run)


def test_gradient_accumulation() -> None:
    """Gradients add up over batches, and zeroing them in place starts over."""

    def run(model: nn.Module) -> None:
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        for _ in range(2):
            for shift in range(3):
                (loss_on(model, batch() + shift) / 3).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)

    assert_trains_as_plain(run)


def test_gradient_penalty() -> None:
    """Gradients of gradients run over several devices."""

    def run(model: nn.Module) -> None:
        x = batch().requires_grad_()
        (grad,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        (grad.pow(2).sum() + loss_on(model, batch())).backward()
        momentum(model).step()

    plain, model = towers().double(), towers().double()
    batch_before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        cluster = baechi.Cluster.virtual(3)
        baechi.distribute(model, batch(), cluster=cluster, device_map=PLACES)
        run(plain)
        with cluster:
            run(model)
    finally:
        torch.set_default_dtype(batch_before)
    assert_equal(plain, model, tolerance=1e-12)


# --- out of memory


def out_of_memory(run: Callable[[], Any]) -> baechi.DeviceMemoryError:
    """The exception, without the frames that hold tensors."""
    with pytest.raises(baechi.DeviceMemoryError) as caught:
        run()
    error: baechi.DeviceMemoryError = caught.value.with_traceback(None)
    return error


def test_recovery_after_a_large_batch() -> None:
    """A batch that is too large raises with the layer and the bytes; the next step is as if nothing was."""
    plain, model = towers(), towers()
    cluster = spread(model, memory="8KiB")
    train(plain)
    with cluster:
        error = out_of_memory(lambda: loss_on(model, batch(1000)))
        train(model)
    # the copy of the batch is 24,000 bytes; 512 are the weights of the left branch
    assert (error.device, error.needed_bytes, error.live_bytes, error.memory_bytes) == (
        "cpu:0",
        24_000,
        512,
        8192,
    )
    assert "24,000 bytes" in str(error)
    assert any("left.0" in note for note in error.__notes__)
    assert isinstance(error, torch.OutOfMemoryError)
    assert_equal(plain, model)


@pytest.mark.parametrize("where", ["forward", "backward", "step"])
def test_recovery_wherever_memory_ran_out(where: str) -> None:
    """Memory that runs out in forward, in backward or in the optimizer's step is given back."""
    plain, model = towers(), towers()
    cluster = spread(model, memory="4KiB")
    train(plain)
    statistics = copy.deepcopy(model.right[2].state_dict())
    with cluster:
        optimizer = torch.optim.Adam(model.parameters(), lr=0.0)
        # weights, batch, hidden and output take 512 + 120 + 160 + 160 = 952 bytes in forward; with
        # gradients it is 1,528 in backward, and 2,592 in the step, which makes Adam's state
        free_bytes = {"forward": 800, "backward": 1300, "step": 2200}
        ballast = torch.zeros((4096 - free_bytes[where]) // 4, device="cpu:0")

        def step() -> str:
            optimizer.zero_grad()
            reached = ["forward"]
            try:
                loss = loss_on(model, batch())
                reached.append("backward")
                loss.backward()
                reached.append("step")
                optimizer.step()
            except baechi.DeviceMemoryError:
                return reached[-1]
            return "end"

        assert step() == where
        del ballast
        assert step() == "end"
        model.right[2].load_state_dict(statistics)
        train(model)
    assert_equal(plain, model)


def test_recovery_after_an_interrupt() -> None:
    """Ctrl-C in a layer reaches the caller as it is, and the next step is right."""
    plain, model = towers(), towers()
    cluster = spread(model)
    train(plain)

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with cluster:
        hook = model.right.register_forward_pre_hook(interrupt)
        with pytest.raises(KeyboardInterrupt):
            loss_on(model, batch())
        hook.remove()
        train(model)
    assert_equal(plain, model)


# --- what is done with models besides


def test_printing() -> None:
    """Models and tensors of any device print as they do outside."""
    model = towers()
    cluster = spread(model)
    outside = repr(model), [repr(weight) for weight in model.parameters()], f"{model.head.bias.sum():.4f}"
    with cluster:
        inside = repr(model), [repr(weight) for weight in model.parameters()], f"{model.head.bias.sum():.4f}"
    assert inside == outside


def pickled(model: nn.Module) -> nn.Module:
    copied: nn.Module = pickle.loads(pickle.dumps(model))
    return copied


@pytest.mark.parametrize("inside", [True, False], ids=["inside", "outside"])
@pytest.mark.parametrize("duplicate", [copy.deepcopy, pickled])
def test_copies_of_a_model(duplicate: Callable[[nn.Module], nn.Module], inside: bool) -> None:
    """A copy, made inside or outside, trains inside as the original does, on the same devices."""
    plain, model = towers(), towers()
    cluster = spread(model)
    train(plain)
    copied = None if inside else duplicate(model)
    with cluster:
        copied = copied or duplicate(model)
        train(copied)
        assert places_of(copied) == homes(copied)
        train(model)
    assert_equal(plain, copied)
    assert_equal(plain, model)
    assert all(a is not b for a, b in zip(copied.parameters(), model.parameters(), strict=True))


def saved(state: Any) -> Any:
    """A state dict that was written to a file and read again."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file)


def test_state_dicts() -> None:
    """Saved and loaded inside, model and optimizer go on where they were, on the same devices."""

    def run(model: nn.Module) -> None:
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        loss_on(model, batch()).backward()
        optimizer.step()
        state, moments = saved(model.state_dict()), saved(optimizer.state_dict())
        train(model)  # what is to be forgotten
        model.load_state_dict(state)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        optimizer.load_state_dict(moments)
        optimizer.zero_grad()
        loss_on(model, batch()).backward()
        optimizer.step()

    plain, model = towers(), towers()
    cluster = spread(model)
    run(plain)
    with cluster:
        run(model)
        assert places_of(model) == homes(model)
    assert_equal(plain, model)


def test_best_weights() -> None:
    """A deep copy of the state dict lies where the weights lie, and can be loaded and averaged."""

    def run(model: nn.Module) -> None:
        best = copy.deepcopy(model.state_dict())
        train(model)
        for name, weight in model.state_dict().items():
            if weight.is_floating_point():
                best[name].lerp_(weight, 0.5)
        model.load_state_dict(best)

    assert_trains_as_plain(run)


@pytest.mark.parametrize("buffers", [True, False], ids=["with buffers", "without buffers"])
def test_moving_average(buffers: bool) -> None:
    """An exponential moving average of a distributed model is a distributed model of its own."""

    def run(model: nn.Module) -> nn.Module:
        average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5), use_buffers=buffers)
        optimizer = momentum(model)
        for _ in range(3):
            optimizer.zero_grad()
            loss_on(model, batch()).backward()
            optimizer.step()
            average.update_parameters(model)
        with torch.no_grad():
            average.eval()(batch())
        copied: nn.Module = average.module
        return copied

    plain, model = towers(), towers()
    expected, cluster = run(plain), spread(model)
    with cluster:
        average = run(model)
        assert places_of(average) == homes(average)
    assert_equal(plain, model)
    assert_equal(expected, average)


def test_functional_call() -> None:
    """A call with other weights computes with those, and gradients reach them."""

    def run(model: nn.Module) -> list[torch.Tensor]:
        others = {name: (2 * weight.detach()).requires_grad_() for name, weight in model.named_parameters()}
        out = torch.func.functional_call(model, others, (batch(),))
        out.sum().backward()
        assert all(weight.grad is None for weight in model.parameters())
        return [out.detach(), *[other.grad for other in others.values() if other.grad is not None]]

    plain, model = towers(), towers()
    expected, cluster = run(plain), spread(model)
    with cluster:
        found = run(model)
    assert len(found) == 11
    assert all(identical(a, b) for a, b in zip(expected, found, strict=True))


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
        assert places_of(model) == homes(model)
        train(model)
        baechi.distribute(late, cluster=cluster, device_map=PLACES)  # at its first call
        train(late)
        assert places_of(late) == homes(late)
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


def test_last_step() -> None:
    """A step that was measured has its phases, its transfers, its peaks; it can be read any time later."""
    model = towers()
    cluster = spread(model)
    optimizer = momentum(model)
    with cluster:
        for _ in range(2):
            optimizer.zero_grad()
            loss_on(model, batch()).backward()
            optimizer.step()
        measured = baechi.last_step(model)
    assert baechi.last_step(model) == measured
    assert {span.phase for span in measured.spans} == {"forward", "backward", "other"}
    assert {span.where for span in measured.spans if span.kind == "transfer"} == {
        "host>cpu:0", "host>cpu:1", "cpu:0>cpu:1", "cpu:1>cpu:2", "cpu:2>host",
        "host>cpu:2", "cpu:2>cpu:1", "cpu:1>cpu:0",
    }  # fmt: skip
    # the batch twice, the left branch, both branches, the output; the same back but for the batch
    assert measured.counters["transfers"] == 8
    assert measured.counters["transfer_bytes"] == 2 * 120 + 160 + 320 + 60 + (60 + 320 + 160)
    assert all(measured.peak_bytes[name] > 0 for name in cluster.names)
    assert measured.makespan_s > 0


def test_peaks_by_hand() -> None:
    """The peak of a small step is what one counts on paper."""
    model, cluster = nn.Linear(4, 4, bias=False), baechi.Cluster.virtual(1)
    baechi.distribute(model, torch.ones(2, 4), cluster=cluster)
    with cluster:
        with torch.no_grad():
            model(torch.ones(2, 4))
        assert baechi.last_step(model).peak_bytes == {"cpu:0": 64 + 32 + 32}  # weight, input, output
        loss = model(torch.ones(2, 4)).sum()
        loss.backward()
        # in backward: weight, input, gradient of the output (one number, expanded), gradient of the weight
        assert baechi.last_step(model).peak_bytes == {"cpu:0": 64 + 32 + 4 + 64}


def test_nothing_was_measured() -> None:
    """Without a step inside of `with` there is nothing to tell, and the error says what to do."""
    model = towers()
    cluster = spread(model)
    unmeasured = re.escape("inside `with cluster:`")
    with pytest.raises(baechi.BaechiError, match=unmeasured):
        baechi.last_step(model)
    model(batch())
    with pytest.raises(baechi.BaechiError, match=unmeasured):
        baechi.last_step(model)
    with cluster:
        model(batch())
        assert baechi.last_step(model).makespan_s > 0
    model(batch())
    with pytest.raises(baechi.BaechiError, match=unmeasured):
        baechi.last_step(model)


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
