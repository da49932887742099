"""Outputs of microbatches are joined along the dimension that grows with the rows of a batch."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from run.pipeline.by_loop import assert_same_gradients
from run.pipeline.nets import noise, pipelined, seeded
from torch import Tensor, nn

from baechi.errors import BaechiError

WHERE = {"a": 0, "b": 1}


class Returns(nn.Module):
    """Two layers, and what a function makes of their outcome."""

    def __init__(self, returns: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.a, self.b, self.returns = nn.Linear(4, 4), nn.Linear(4, 4), returns

    def forward(self, x: Tensor) -> Any:
        return self.returns(self.b(self.a(x).tanh()))


OUTPUTS: dict[str, Callable[[Tensor], Any]] = {
    "rows last": lambda x: x.movedim(0, -1),
    "as many layers as a microbatch has rows": lambda x: torch.stack([x, -x]),
    "as many steps": lambda x: x[:, :2].transpose(0, 1),
    "as many classes": lambda x: x[:, 0, :2],
    "in a dictionary": lambda x: {"hidden": (torch.stack([x, -x]), x), "logits": x[:, 0]},
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_along_the_rows(name: str) -> None:
    """Whatever else is as long as a microbatch has rows; with gradients."""
    model, x = seeded(lambda: Returns(OUTPUTS[name])), noise(8, 3, 4)
    plain = copy.deepcopy(model)
    with pipelined(model, x, microbatches=4, device_map=WHERE):
        found, expected = model(x), plain(x)
        torch.testing.assert_close(found, expected)
        for result in (found, expected):
            tensors = result["hidden"] if isinstance(result, dict) else (result,)
            sum(tensor.square().sum() for tensor in tensors).backward()
    assert_same_gradients(model, plain)


def test_split_elsewhere() -> None:
    """Inputs have their rows in dimension 1, and two logits for each row in dimension 0."""
    model, x = seeded(lambda: Returns(lambda x: x.mean(0)[:, :2])), noise(5, 8, 4)
    plain = copy.deepcopy(model)
    with pipelined(model, x, microbatches=4, device_map=WHERE, split={"x": 1}):
        torch.testing.assert_close(model(x), plain(x))


def found_in(x: Tensor) -> Any:
    """As detectors return it."""
    return {"boxes": [{"box": row, "label": 1} for row in x], "counts": [3] * len(x), "sizes": [3, 4]}


def test_lists_with_an_item_for_each_row() -> None:
    """One after the other; a list of another length stays as it is."""
    model, x = seeded(lambda: Returns(found_in)), noise(8, 4)
    plain = copy.deepcopy(model)
    with pipelined(model, x, microbatches=4, device_map=WHERE), torch.no_grad():
        torch.testing.assert_close(model(x), plain(x))


def test_what_does_not_grow_is_not_joined() -> None:
    """As long as a microbatch has rows, by chance: what the parts counted is not one after the other."""
    model, x = seeded(lambda: Returns(lambda x: {"rows": x, "seen": x.sum(0)[:2]})), noise(8, 4)
    with pipelined(model, x, microbatches=4, device_map=WHERE):
        seen = model(x)["seen"]
    with pytest.raises(BaechiError, match="seen is a tensor of shape"):
        seen.sum()


@pytest.mark.parametrize("weights", ["rows", None])
def test_a_loss_of_one_element(weights: str | None) -> None:
    """A loss of shape (1,) is a loss, though a microbatch has one row."""
    model, x = seeded(lambda: Returns(lambda x: x.square().mean().reshape(1))), noise(4, 4)
    plain = copy.deepcopy(model)
    with pipelined(model, x, microbatches=4, device_map=WHERE, loss_weights=weights):
        found, expected = model(x), plain(x)
        torch.testing.assert_close(found, expected)
        found.backward()
        expected.backward()
    assert_same_gradients(model, plain)


def test_looked_at_once_for_each_kind_of_call() -> None:
    """The whole and its parts, at the first step and at calls 2, 4, 8; else microbatches only."""
    rows: list[int] = []

    def returns(x: Tensor) -> Tensor:
        rows.append(len(x))
        return x

    model, x = seeded(lambda: Returns(returns)), noise(8, 4)
    with pipelined(model, x, microbatches=4, device_map=WHERE, loss_weights="rows"):
        rows.clear()
        for call in range(1, 9):
            model(x)
            looks = [8, 2, 2, 2, 2] if call in (1, 2, 4, 8) else []
            assert rows == [*looks, 2, 2, 2, 2]
            rows.clear()


@pytest.mark.parametrize("compile", [None, "stages"])
def test_gradients_of_an_output_beside_the_loss(compile: str | None) -> None:
    """They are refused, by `backward` and where gradients of weights are asked for by name."""
    model, x = seeded(lambda: Returns(lambda x: (x.square().mean(), x.abs().mean()))), noise(8, 4)
    with pipelined(model, x, microbatches=4, device_map=WHERE, loss_weights="rows", compile=compile):
        loss, other = model(x)
        with pytest.raises(BaechiError, match="no gradient any more"):
            torch.autograd.grad(loss + other, list(model.parameters()))
        loss, other = model(x)
        with pytest.raises(BaechiError, match="no gradient any more"):
            (loss + other).backward()
