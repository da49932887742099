"""Compiled blocks on devices that torch keeps apart, by the backend `eager` and one that counts."""

from typing import Any

import pytest
import torch
from run.drop_in.compiled_blocks import OPERATORS, Counting, step, tower

import baechi
from accelerator import ToyMachine

from .devices import TWO, placed, there, whole

pytestmark = pytest.mark.full

WHERE = {"": 0, **{f"blocks.{number}": number % 2 for number in range(8)}}


def same(ours: list[torch.Tensor], plain: list[torch.Tensor]) -> bool:
    return all(torch.equal(one.cpu(), other.cpu()) for one, other in zip(ours, plain, strict=True))


@pytest.mark.full
@pytest.mark.parametrize("reorder", [False, "host", "threads"])
def test_one_compilation_for_each_device(toy: ToyMachine, reorder: Any) -> None:
    """Of the first block, whose input requires no gradient; of the others there; of those elsewhere."""
    plain, model, backend, x = whole(tower), tower(), Counting(), torch.linspace(-1, 1, 12).view(3, 4)
    for each in (plain, model):
        for block in each.blocks:  # type: ignore[union-attr]
            block.compile(backend=backend)
    expected = step(plain, there(x))
    placed(model, x, WHERE, reorder=reorder)
    torch._dynamo.reset()
    backend.compiled.clear()
    for _ in range(3):
        backend.runs = 0
        assert same(step(model, there(x)), expected)
        assert backend.runs == 8
    assert backend.compiled == [OPERATORS] * 3


def test_regions_by_the_backend_eager(toy: ToyMachine) -> None:
    """`distribute` compiles them; the numbers are those of one device."""
    x = torch.linspace(-1, 1, 12).view(3, 4)
    expected = step(whole(tower), there(x))
    model = baechi.distribute(
        tower(),
        x,
        cluster=TWO,
        placer="round-robin",
        source="estimate",
        compile={"backend": "eager"},
        verify=False,
    )
    assert len(baechi.plan_of(model).devices_used) == 2
    for _ in range(2):
        assert same(step(model, there(x)), expected)
