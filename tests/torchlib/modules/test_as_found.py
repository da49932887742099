"""Capturing leaves a model, and what it keeps, as found."""

import random
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
from run.two import Two, same_on_two_devices
from torch import nn


def test_weights_replaced_in_forward() -> None:
    """An EMA teacher assigns `p.data` in forward: under fake tensors its memory became a fake one,
    and the weights were gone."""

    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        m.b.weight.data = 0.9 * m.b.weight.data + 0.1 * m.a.weight.data
        return m.b(m.a(x))

    same_on_two_devices(lambda: Two(forward), by_hand=False)


@pytest.mark.parametrize("look", [False, True], ids=["fake tensors", "real tensors"])
def test_weights_written_in_forward(look: bool) -> None:
    """A forward that writes a parameter (a data-dependent initialization) ran once too often: torch
    runs operations on real tensors alone for real, even under fake ones."""

    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            m.scale.mul_(1.5)
        h = m.a(x)
        return m.b(h) * m.scale.detach() if not look or float(h.detach().sum()) > -1e9 else h

    same_on_two_devices(lambda: Two(forward, scale=nn.Parameter(torch.ones(4))))


def caches() -> list[tuple[str, Callable[[], Any], Callable[[Any, torch.Tensor], torch.Tensor]]]:
    def nested(store: Any, h: torch.Tensor) -> torch.Tensor:
        store["deep"].setdefault("h", h.detach())
        return store["deep"]["h"]

    def queue(store: Any, h: torch.Tensor) -> torch.Tensor:
        store.append(h.detach())
        return torch.stack(list(store)).mean(0)

    def attribute(store: Any, h: torch.Tensor) -> torch.Tensor:
        store.last = h.detach() if not hasattr(store, "last") else store.last
        return store.last  # type: ignore[no-any-return]

    def plain_tensor(store: Any, h: torch.Tensor) -> torch.Tensor:
        store.add_(h.detach())
        return store.clone()

    def drawn(store: Any, h: torch.Tensor) -> torch.Tensor:
        return h * store.random()

    return [
        ("nested dict", lambda: {"deep": {}}, nested),
        ("deque", lambda: deque(maxlen=3), queue),
        ("object", lambda: type("Store", (), {})(), attribute),
        ("tensor that is no buffer", lambda: torch.zeros(3, 4), plain_tensor),
        ("generator of the model's own", lambda: random.Random(3), drawn),
    ]


@pytest.mark.parametrize("name, make, use", caches(), ids=[case[0] for case in caches()])
def test_caches_of_a_model(name: str, make: Callable[[], Any], use: Callable[..., torch.Tensor]) -> None:
    """What a model keeps between calls kept fake tensors of the capture, and the next real call
    answered from memory that nobody had written."""
    same_on_two_devices(lambda: Two(lambda m, x: m.b(use(m.store, m.a(x))), store=make()), steps=3)
