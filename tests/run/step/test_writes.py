"""What writes in place waits for the transfers that read, whatever it is."""

from collections.abc import Callable

import pytest
import torch
from architectures.base import noise, seeded
from torch import nn
from torch.nn import functional as F

import baechi


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

    infer_aside(seeded(Model)(), noise(5, 6))


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

    model, cluster = seeded(Model)(), baechi.Cluster.virtual(2)
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

    infer_aside(seeded(Model)(), noise(5, 6), training=False)


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

    infer_aside(seeded(Model)(), torch.arange(5))


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

    infer_aside(seeded(Model)(), noise(5, 6))


def test_inputs_may_be_written_after_the_step() -> None:
    """When a model returns, its input is the caller's, who may write it in place."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 6)

        def forward(self, x: torch.Tensor) -> None:
            self.last(self.first(x))

    model, cluster = seeded(Model)(), baechi.Cluster.virtual(3)
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

    model, cluster = seeded(Model)(), baechi.Cluster.virtual(2)
    baechi.distribute(model, torch.arange(5), cluster=cluster, device_map={"aside": 1, "": 0})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with cluster:
        model(torch.arange(5)).pow(2).mean().backward()
        optimizer.step()


def test_what_has_no_device_and_is_written_with_an_input_stays_with_it() -> None:
    """It sends its gradient to where the input lies, so what reads it later is sent a copy."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            made = torch.ones(3, 4) * 2
            made[:, :2] = x[:, 2:]
            out: torch.Tensor = self.last(made * 1) + self.first(x)
            return out

    plain, model, cluster = seeded(Model)(), seeded(Model)(), baechi.Cluster.virtual(2)
    expected, x = noise(3, 4).requires_grad_(), noise(3, 4).requires_grad_()
    baechi.distribute(model, x, cluster=cluster, device_map={"first": 1, "": 0})
    plain(expected).sum().backward()
    with cluster:
        model(x).sum().backward()
    assert x.grad is not None and expected.grad is not None
    assert torch.equal(x.grad, expected.grad)
