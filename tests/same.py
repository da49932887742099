"""Whether a distributed model computes what the plain one does."""

from dataclasses import dataclass
from typing import Any

import torch
from architectures import loss_of
from torch import nn

from baechi.torchlib.tensors.pytree import tensors_in

ROUNDING = 2e-5
"""What single precision loses where three or more gradients are summed in another order."""


@dataclass(frozen=True)
class Result:
    """What one step leaves behind."""

    outputs: list[torch.Tensor]
    grads: dict[str, torch.Tensor | None]
    buffers: dict[str, torch.Tensor]


def step(model: nn.Module, inputs: dict[str, Any], *, training: bool, seed: int = 3) -> Result:
    """One seeded step: forward and backward in training, forward without gradients in evaluation."""
    torch.manual_seed(seed)
    model.train(training)
    model.zero_grad()
    with torch.set_grad_enabled(training):
        outputs = model(**inputs)
        if training:
            loss_of(outputs).backward()
    return Result(
        [tensor.detach().clone() for tensor in tensors_in(outputs)],
        {n: None if p.grad is None else _dense(p.grad) for n, p in model.named_parameters()},
        {name: _dense(buffer) for name, buffer in model.named_buffers()},
    )


def assert_same(reference: Result, result: Result, *, tolerance: float = 0.0) -> None:
    """Outputs and buffers equal bit for bit; gradients within the tolerance, relative to the largest."""
    assert len(reference.outputs) == len(result.outputs)
    for index, (one, other) in enumerate(zip(reference.outputs, result.outputs, strict=True)):
        assert identical(one, other), f"output {index}"
    for name, buffer in reference.buffers.items():
        assert identical(buffer, result.buffers[name]), f"buffer {name}"
    found_grads = [grad for grad in reference.grads.values() if grad is not None and grad.numel()]
    largest = max([float(grad.abs().max()) for grad in found_grads], default=0.0)
    for name, grad in reference.grads.items():
        found = result.grads[name]
        assert (grad is None) == (found is None), f"gradient of {name}"
        if grad is not None and found is not None and not identical(grad, found):
            difference = float((grad - found).abs().max())
            assert difference <= tolerance * largest, f"gradient of {name} is off by {difference}"


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    """A copy, not sparse."""
    return tensor.clone() if tensor.layout == torch.strided else tensor.to_dense()


def identical(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Same shape, dtype and values, NaN being equal to NaN."""
    same_kind = one.shape == other.shape and one.dtype == other.dtype
    if not (same_kind and torch.equal(one.isnan(), other.isnan())):
        return False
    return torch.equal(one.nan_to_num(), other.nan_to_num())
