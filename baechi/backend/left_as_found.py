"""The model as it was found: taken before a capture or a measurement, put back after."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from baechi.backend.random_state import random_state_kept


@contextmanager
def left_as_found(model: nn.Module) -> Iterator[None]:
    """Put everything back that running the model may change, also after an exception.

    Attributes, buffers and parameters registered on every module, the contents of plain lists,
    dicts and sets they hold (caches), training flags, gradients, the values of weights that a
    forward writes, and the states of the random generators of torch, Python and numpy.

    Args:
        model: the model.
    """
    modules = list(model.modules())
    attributes = [(module, dict(vars(module)), _containers(vars(module))) for module in modules]
    grads = [(p, p.grad) for p in model.parameters()]
    contents = [(weight, weight.detach().clone()) for weight in _written(model)]
    with random_state_kept():
        try:
            yield
        finally:
            for module, before, containers in attributes:
                vars(module).clear()
                vars(module).update(before)
                for container, content in containers:
                    _refill(container, content)
            for parameter, grad in grads:
                parameter.grad = grad
            with torch.no_grad():
                for weight, content in contents:
                    if not torch.equal(weight, content):
                        weight.copy_(content)


def _written(model: nn.Module) -> Iterator[torch.Tensor]:
    """Weights that a forward may write: buffers, and what an embedding with `max_norm` rescales.

    Fake tensors do not keep small ones safe: torch runs some operations on them for real.
    """
    for module in model.modules():
        scaled = [p for p in module._parameters.values() if getattr(module, "max_norm", None) is not None]
        for weight in (*module._buffers.values(), *scaled):
            if weight is not None and not weight.is_meta:
                yield weight


def _containers(attributes: dict[str, Any]) -> list[tuple[Any, Any]]:
    """Plain containers among the attributes (registered modules, parameters and hooks are some)."""
    return [(item, item.copy()) for item in attributes.values() if isinstance(item, (dict, list, set))]


def _refill(container: Any, content: Any) -> None:
    if isinstance(container, list):
        container[:] = content
    else:
        container.clear()
        container.update(content)
