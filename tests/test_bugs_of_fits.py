"""Bugs that were, each with its story: whether a model fits, and which batch is the largest."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import baechi


class Two(nn.Module):
    """Two layers and a forward that is given."""

    def __init__(self, forward: Callable[..., Any]) -> None:
        super().__init__()
        self.a, self.b, self.function = nn.Linear(4, 4), nn.Linear(4, 4), forward

    def forward(self, x: Any) -> Any:
        return self.function(self, x)


def test_the_largest_batch_was_run_for_real() -> None:
    """A model that looks at values is captured with real tensors, so `fits` ran the largest batch that 16 GiB
    hold on the host, and filled it; and for every model it made inputs of that batch."""
    batches: list[int] = []

    def forward(m: Any, x: Tensor) -> Tensor:
        h: Tensor = m.b(m.a(x))
        if float(h.detach().sum()) > -1e9:
            batches.append(len(x))
        return h

    answer = baechi.fits(Two(forward), torch.ones(3, 4), baechi.Cluster.virtual(2), training=True)
    assert answer and answer.largest_batch is not None and answer.largest_batch > 1_000_000
    assert set(batches) == {3, 6}


def test_a_first_dimension_that_is_no_batch() -> None:
    """A detector is given a list of images: the first dimension of the first is its channels. With twice as
    many it does not run, and that raised, though all that was asked had an answer."""

    def forward(m: Any, x: list[Tensor]) -> Tensor:
        return m.b(m.a(torch.stack(x)))

    answer = baechi.fits(Two(forward), ([torch.ones(4), torch.ones(4)],), baechi.Cluster.virtual(2))
    assert answer and answer.largest_batch is None


def test_the_way_down_was_walked_one_by_one() -> None:
    """Where memory grows faster than the batch, the line through two batches promises too many. Each batch
    below was captured and placed, one after the other, until one fitted: for hours."""
    batches: list[int] = []

    def forward(m: Any, x: Tensor) -> Tensor:
        batches.append(len(x))
        h: Tensor = m.b(m.a(x))
        return (h @ h.T).sum()

    cluster = baechi.Cluster.virtual(2, memory="4MiB")
    answer = baechi.fits(Two(forward), torch.ones(2, 4), cluster, training=False)
    largest = answer.largest_batch
    assert largest is not None and batches[2] > 10 * largest and len(batches) < 50
    fitting = [
        baechi.fits(Two(forward), torch.ones(n, 4), cluster, training=False) for n in (largest, largest + 1)
    ]
    assert [bool(one) for one in fitting] == [True, False]
