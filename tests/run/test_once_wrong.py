"""Once wrong, or still: what training on the emulated cluster found, each with its story."""

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from architectures import HELD_IN, loss_of
from same import identical
from torch import nn
from torch.nn import functional as F

import baechi
from baechi import zoo


def noise(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def seeded(build: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return build()


# --- writing in place what a transfer still reads


class Writer(nn.Module):
    """Its first layer's output is sent to a layer on the other device, and written right after."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.aside, self.last = nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        sent = self.aside(h)
        out: torch.Tensor = self.last(self.write(h)) + sent
        return out

    def write(self, h: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


def infer_aside(model: nn.Module, x: torch.Tensor, training: bool = True) -> None:
    """Run a model of which the layer aside lies on the second device, all else on the first."""
    cluster = baechi.Cluster.virtual(2)
    baechi.distribute(model, x, cluster=cluster, device_map={"aside": 1, "": 0}, training=training)
    with cluster, torch.no_grad():
        model.train()(x)


FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": lambda h: F.relu(h, inplace=True),
    "relu, by position": lambda h: F.relu(h, True),
    "leaky_relu": lambda h: F.leaky_relu(h, 0.1, inplace=True),
    "hardtanh": lambda h: F.hardtanh(h, inplace=True),
    "threshold": lambda h: F.threshold(h, 0.0, 0.0, True),
    "celu": lambda h: F.celu(h, inplace=True),
    "dropout": lambda h: F.dropout(h, 0.5, training=True, inplace=True),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_that_write_when_asked_to(name: str) -> None:
    """`inplace=True` makes a function of the model's own code a writer: it waits, whatever its name."""

    class Model(Writer):
        def write(self, h: torch.Tensor) -> torch.Tensor:
            return FUNCTIONS[name](h)

    infer_aside(seeded(Model), noise(5, 6))


class AddsWeight(nn.Module):
    """Writes its argument in place."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(6))

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return h.add_(self.weight)


@pytest.mark.parametrize("build", [AddsWeight, lambda: nn.ReLU(inplace=True)], ids=["weights", "none"])
def test_layers_that_the_capture_never_saw(build: Callable[[], nn.Module]) -> None:
    """Of a layer on a branch that was not taken when captured nothing is known: it may write."""

    class Model(Writer):
        taken = False

        def __init__(self) -> None:
            super().__init__()
            self.rare = build()

        def write(self, h: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.rare(h) if self.taken else h
            return out

    model, cluster = seeded(Model), baechi.Cluster.virtual(2)
    baechi.distribute(model, noise(5, 6), cluster=cluster, device_map={"aside": 1, "": 0})
    model.taken = True  # type: ignore[assignment]
    with cluster, torch.no_grad():
        model(noise(5, 6))


def test_layers_that_write_in_training_only() -> None:
    """A model captured for inference may be called in training, where its dropout writes in place."""

    class Model(Writer):
        def __init__(self) -> None:
            super().__init__()
            self.drop = nn.Dropout(0.5, inplace=True)

        def write(self, h: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.drop(h)
            return out

    infer_aside(seeded(Model), noise(5, 6), training=False)


@pytest.mark.parametrize("functional", [True, False], ids=["function", "layer"])
def test_embeddings_that_write_their_weights(functional: bool) -> None:
    """`max_norm` makes an embedding write its own weights, which were sent to another layer before."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(10, 6, max_norm=0.5)
            self.aside, self.last = nn.Tanh(), nn.Linear(6, 6)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            sent = self.aside(self.embedding.weight)
            if functional:
                h = F.embedding(tokens, self.embedding.weight, max_norm=0.5)
            else:
                h = self.embedding(tokens)
            out: torch.Tensor = self.last(h) + sent[:5]
            return out

    infer_aside(seeded(Model), torch.arange(5))


def test_layers_that_write_what_they_handed_out() -> None:
    """A layer may keep a tensor that it returned, and write it in its next call."""

    class Running(nn.Module):
        total: torch.Tensor | None = None

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.total = x * self.weight if self.total is None else self.total.add_(x)
            return self.total

    class Model(Writer):
        def __init__(self) -> None:
            super().__init__()
            self.running = Running()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.running.total = None
            sent = self.aside(self.running(self.first(x)))
            out: torch.Tensor = self.last(self.running(x)) + sent
            return out

    infer_aside(seeded(Model), noise(5, 6))


def test_inputs_may_be_written_after_the_step() -> None:
    """When a model returns, its input is the caller's, who may write it in place."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 6)

        def forward(self, x: torch.Tensor) -> None:
            self.last(self.first(x))

    model, cluster = seeded(Model), baechi.Cluster.virtual(3)
    baechi.distribute(model, noise(5, 6), cluster=cluster, device_map={"first": 0, "last": 2})
    with cluster, torch.no_grad():
        x = noise(5, 6).to("cpu:1")
        model(x)
        x.zero_()


def test_weights_may_be_written_after_the_step() -> None:
    """An optimizer writes weights that were sent to a layer whose result nobody waited for."""

    class Model(nn.Module):
        metric: torch.Tensor | None = None

        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.aside = nn.Embedding(10, 6), nn.Tanh()

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                self.metric = self.aside(self.embedding.weight)
            out: torch.Tensor = self.embedding(tokens)
            return out

    model, cluster = seeded(Model), baechi.Cluster.virtual(2)
    baechi.distribute(model, torch.arange(5), cluster=cluster, device_map={"aside": 1, "": 0})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with cluster:
        model(torch.arange(5)).pow(2).mean().backward()
        optimizer.step()


# --- peaks above the prediction


Optimizers = Callable[[Any], torch.optim.Optimizer]


def assert_fits(
    model: nn.Module,
    inputs: Any,
    *,
    placer: str = "single",
    n: int = 1,
    name: str | None = None,
    optimizer: Optimizers | None = None,
) -> None:
    """With exactly the predicted peaks as memory, two steps run."""
    training = optimizer is not None
    graph = baechi.profile(model, inputs, cluster=baechi.Cluster.virtual(1), training=training)
    plan = baechi.place(graph, baechi.Cluster.virtual(n), placer, optimizer=name)
    peaks = plan.timeline.peak_bytes
    devices = [replace(device, memory_bytes=peaks[device.name]) for device in plan.cluster.devices]
    cluster = replace(plan.cluster, devices=tuple(devices))
    baechi.assign(model.train(training), replace(plan, cluster=cluster))
    with cluster:
        weights = optimizer(model.parameters()) if optimizer is not None else None
        for _ in range(2):
            if weights is not None:
                weights.zero_grad()
            with torch.set_grad_enabled(training):
                out = model(**inputs) if isinstance(inputs, dict) else model(inputs)
            if weights is not None:
                loss_of(out).backward()
                weights.step()


def test_memory_of_recurrent_layers() -> None:
    """What a recurrent kernel keeps for backward, its workspace, is part of the prediction."""
    assert_fits(nn.LSTM(16, 16), noise(8, 4, 16), name="sgd", optimizer=lambda w: torch.optim.SGD(w, lr=0.1))


def test_memory_of_the_batch() -> None:
    """The batch stays on the device as long as the caller's frames hold it, in inference too."""
    assert_fits(nn.Sequential(nn.Linear(64, 4), nn.Linear(4, 64)), noise(256, 64))


def test_memory_of_variables() -> None:
    """What a variable of `forward` holds stays until `forward` returns, read or not."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(1, 64), *[nn.Linear(64, 64) for _ in range(3)]])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            one = self.layers[0](x)
            two = self.layers[1](one)
            three = self.layers[2](two)
            out: torch.Tensor = self.layers[3](three)
            return out

    assert_fits(Model(), noise(256, 1))


def test_memory_of_gradients_made_in_backward() -> None:
    """A layer's backward makes the gradient of its input while it holds that of its output."""
    model, (images,) = zoo.inception_v3("small")
    inputs = {"images": images}
    assert_fits(
        model, inputs, placer="m-topo", n=3, name="sgd", optimizer=lambda w: torch.optim.SGD(w, lr=0.1)
    )


@pytest.mark.parametrize(
    ("name", "optimizer"),
    [
        # the last weight's denominator lives on in a variable, beside a root and a quotient
        ("adam", lambda w: torch.optim.Adam(w, foreach=False)),
        # roots and products, of all weights at once
        ("adagrad", lambda w: torch.optim.Adagrad(w, foreach=True)),
    ],
    ids=["adam", "adagrad"],
)
def test_memory_of_optimizers(name: str, optimizer: Optimizers) -> None:
    """An optimizer's step has temporary tensors: three of a weight in plain Adam, two of all in Adagrad."""
    layers = [nn.Linear(64, 64, bias=False) for _ in range(2)]
    assert_fits(nn.Sequential(*layers), noise(2, 64), name=name, optimizer=optimizer)


def test_memory_that_comes_back_late() -> None:
    """A host far ahead has blocks that are used on other streams come back late; the peak has nearly all."""
    llama = next(a for a in HELD_IN if a.name == "llama")
    model, cluster = llama.build().train(), baechi.Cluster.virtual(4)
    baechi.distribute(model, llama.inputs(), cluster=cluster, placer="random:4", optimizer="adam")
    predicted = baechi.plan_of(model).timeline.peak_bytes
    optimizer = torch.optim.Adam(model.parameters(), foreach=True)
    with cluster:
        for _ in range(2):
            optimizer.zero_grad()
            model(**llama.inputs()).loss.backward()
            optimizer.step()
            measured = baechi.last_step(model).peak_bytes
            assert all(measured[name] <= 1.02 * predicted[name] for name in cluster.names)


# --- places


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(self.first(x))
        return out


def two() -> tuple[nn.Module, nn.Module, baechi.Cluster]:
    """The plain model, the same on two devices, and these."""
    model, cluster = seeded(Two), baechi.Cluster.virtual(2)
    baechi.distribute(model, noise(5, 6), cluster=cluster, device_map={"first": 0, "last": 1})
    return seeded(Two), model, cluster


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
    model = seeded(Two)
    where = {"first": "large", "last": "cpu:0"}
    cluster = baechi.Cluster(devices, emulated=True)
    baechi.distribute(model, noise(5, 6), cluster=cluster, device_map=where)
    with cluster:
        assert model.first.weight.device != model.last.weight.device  # type: ignore[union-attr]
        bias = model.first.bias  # type: ignore[union-attr]
        bias + torch.zeros(6, device=bias.device)  # type: ignore[operator, arg-type]


def test_factories_that_answer_for_a_device() -> None:
    """`torch.tensor` under a default device, and `new_tensor`, make tensors there, as on CUDA."""
    with baechi.Cluster.virtual(2):
        with torch.device("cpu:1"):
            made = torch.zeros(2), torch.tensor([1.0, 2.0]), torch.as_tensor([1.0, 2.0])
        found = [str(tensor.device) for tensor in (*made, made[0].new_tensor([1.0, 2.0]))]
    assert found == ["cpu:1"] * 4
