"""A pipelined step beside its reference: a loop over the same parts with the same seeds."""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

import baechi
from baechi.records.inputs import Inputs
from baechi.run.pipeline.batch.partition import parted
from baechi.torchlib.tensors.pytree import map_tensors
from baechi.verbs.batches import batch_size, resized_batch

SEED = 3


class WithLoss(nn.Module):
    """A model that returns a scalar made of all its outputs."""

    def __init__(self, model: nn.Module, loss: Callable[[Any], Tensor]) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return self.loss(self.model(*args, **kwargs))


def doubled(value: Any) -> Any:
    """In double precision, so that sums of gradients in another order show in the last digits only."""
    return map_tensors(lambda tensor: tensor.double() if tensor.is_floating_point() else tensor, value)


def batch_of(inputs: Mapping[str, Any], rows: int) -> dict[str, Any]:
    """Inputs with other rows, in double precision."""
    given = Inputs(**doubled(inputs))
    size = batch_size(given)
    assert size is not None
    return resized_batch(given, size, rows).kwargs


def loop(model: nn.Module, inputs: Mapping[str, Any], microbatches: int) -> Tensor:
    """Forward and backward of each part, its loss weighted by rows; returns the sum of losses."""
    torch.manual_seed(SEED)
    seeds = torch.randint(2**62, (microbatches,)).tolist()
    parts = parted(model, Inputs(**inputs), microbatches, {})
    total = torch.zeros((), dtype=torch.float64)
    for part, rows, seed in zip(parts.parts, parts.rows, seeds, strict=True):
        torch.manual_seed(seed)
        loss = model(*part.args, **part.kwargs) * (rows / sum(parts.rows))
        loss.backward()
        total = total + loss.detach()
    return total


def without_plan(model: nn.Module, inputs: Mapping[str, Any], microbatches: int) -> Tensor:
    """As `loop`; one microbatch is the whole batch, which draws from the generator as it is seeded."""
    if microbatches > 1:
        return loop(model, inputs, microbatches)
    torch.manual_seed(SEED)
    loss: Tensor = model(**inputs)
    loss.backward()
    return loss


def assert_as_loop(
    model: nn.Module,
    inputs: Mapping[str, Any],
    microbatches: int,
    *,
    devices: int = 3,
    placer: str = "random:1",
    order: str = "auto",
    steps: int = 2,
    compile: Any = None,
) -> nn.Module:
    """Losses and buffers equal the loop's bit for bit, gradients to 1e-10; returns the distributed model."""
    plain = copy.deepcopy(model)
    for _ in range(steps):
        plain.zero_grad()
        expected = loop(plain, inputs, microbatches)
    cluster = baechi.Cluster.virtual(devices)
    graph = baechi.profile(
        model, inputs, cluster=cluster, training=True, source="estimate", microbatches=microbatches
    )
    pipeline = baechi.pipeline(baechi.place(graph, cluster, placer), microbatches, order)  # type: ignore[arg-type]
    baechi.distribute(model, plan=pipeline, loss_weights="rows", coupled="accept", compile=compile)
    with cluster:
        for _ in range(steps):
            model.zero_grad()
            torch.manual_seed(SEED)
            loss = model(**inputs)
            loss.backward()
    assert torch.equal(loss.detach(), expected)
    assert_same_gradients(model, plain)
    for (name, one), other in zip(model.named_buffers(), plain.buffers(), strict=True):
        assert torch.equal(one, other), name
    return model


def assert_same_gradients(model: nn.Module, plain: nn.Module, tolerance: float = 1e-10) -> None:
    """Gradients of two models are equal but for the order of their sums."""
    grads = [weight.grad.to_dense() for weight in plain.parameters() if weight.grad is not None]
    largest = max([float(grad.abs().max()) for grad in grads if grad.numel()], default=0.0)
    for (name, one), other in zip(model.named_parameters(), plain.parameters(), strict=True):
        assert (one.grad is None) == (other.grad is None), name
        if one.grad is not None and other.grad is not None:
            difference = (one.grad.to_dense() - other.grad.to_dense()).abs().max()
            assert float(difference) <= tolerance * largest, name
