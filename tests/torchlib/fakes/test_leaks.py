"""Fake tensors do not outlive a capture."""

import functools
import gc

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from baechi.capture import capture
from baechi.records import Inputs


@functools.lru_cache(maxsize=4)
def positions(n: int) -> torch.Tensor:
    return torch.arange(n).float()


@functools.cache
def scales(n: int) -> tuple[torch.Tensor, ...]:
    return (torch.ones(n),)


class Caching(nn.Module):
    def __init__(self, look: bool) -> None:
        super().__init__()
        self.inner, self.look = nn.Linear(4, 4), look

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.inner(x) + positions(4) * scales(4)[0]
        return -out if self.look and float(out.detach().sum()) < 0 else out.exp()


def fakes() -> int:
    gc.collect()
    return sum(type(item) is FakeTensor for item in gc.get_objects())


def test_function_caches_are_cleared() -> None:
    """A cached function gives real tensors after a capture, also after one that needed real tensors."""
    for look in (False, True):
        positions.cache_clear()
        model, x = Caching(look), torch.ones(2, 4)
        expected = model(x)
        positions.cache_clear()
        scales.cache_clear()
        capture(model, Inputs(x), training=True)
        assert type(positions(4)) is torch.Tensor and type(scales(4)[0]) is torch.Tensor
        assert torch.equal(model(x), expected)


def test_nothing_fake_stays_alive() -> None:
    """What autograd saved during a capture is gone with it."""
    before = fakes()
    capture(
        nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Softmax(-1)), Inputs(torch.ones(2, 4)), training=True
    )
    assert fakes() == before
