"""What the runtime keeps grows neither with steps nor with the shapes that it has seen."""

import gc
from collections.abc import Iterator
from typing import Any

import pytest
from architectures.base import noise
from run.launched import runtime_of
from run.steady.test_paths import crossed
from torch._subclasses.fake_tensor import FakeTensorMode

from baechi.torchlib.fakes import at_work


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    """Only what is made from now on is counted."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def most_kept(model: Any, rows: range) -> int:
    """The most objects that there are after a training step, over batches with these numbers of rows."""
    most = 0
    for count in rows:
        model.zero_grad()
        model(noise(count, 4)).sum().backward()
        if not count % 5:
            FakeTensorMode.cache_clear()  # torch's own, which has a test of its own
            gc.collect()
            most = max(most, len(gc.get_objects()))
    return most


@pytest.mark.full
@pytest.mark.parametrize("reorder", [False, "host", "threads"])
def test_neither_steps_nor_shapes_are_kept(reorder: Any) -> None:
    """After many shapes there are as many objects as after a few. Outcomes were kept for 20,000 calls."""
    model = crossed(reorder)
    few, many = most_kept(model, range(1, 201)), most_kept(model, range(201, 601))
    assert bool(runtime_of(model).counts.get("deferred")) == bool(reorder)
    assert many < 1.1 * few


def test_what_torch_remembers_of_fake_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch remembers each operator with each shape, for the whole process."""
    monkeypatch.setattr(at_work, "_REMEMBERED", 200)
    FakeTensorMode.cache_clear()
    model, most = crossed("host"), 0
    for rows in range(1, 101):
        model(noise(rows, 4))
        most = max(most, len(FakeTensorMode.cache))
    assert 0 < most < 250
