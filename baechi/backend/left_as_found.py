"""The model as it was found: taken before a capture or a measurement, put back after."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from baechi.backend.random_state import random_state_kept


@contextmanager
def left_as_found(model: nn.Module, *, values: bool) -> Iterator[None]:
    """Put everything back that running the model may change, also after an exception.

    Attributes, buffers and parameters registered on every module, the contents of plain lists,
    dicts and sets they hold (caches), training flags, gradients, and the states of the random
    generators of torch, Python and numpy.

    Args:
        model: the model.
        values: also put back the values in the buffers (a run with real tensors writes them).
    """
    modules = list(model.modules())
    attributes = [(module, dict(vars(module)), _containers(vars(module))) for module in modules]
    grads = [(p, p.grad) for p in model.parameters()]
    contents = [(b, b.detach().clone()) for b in model.buffers()] if values else []
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
                for buffer, content in contents:
                    if not torch.equal(buffer, content):
                        buffer.copy_(content)


def _containers(attributes: dict[str, Any]) -> list[tuple[Any, Any]]:
    """Plain containers among the attributes (registered modules, parameters and hooks are some)."""
    return [(item, item.copy()) for item in attributes.values() if isinstance(item, (dict, list, set))]


def _refill(container: Any, content: Any) -> None:
    if isinstance(container, list):
        container[:] = content
    else:
        container.clear()
        container.update(content)
