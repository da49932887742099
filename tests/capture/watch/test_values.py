"""Models that decide by integer inputs are captured under fake tensors, on `meta` too."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from baechi.capture import capture
from baechi.errors import CaptureError
from baechi.records import Inputs


class Decides(nn.Module):
    """Two layers, one of which runs if some question is answered with yes."""

    def __init__(self, question: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.yes, self.no = nn.Linear(4, 4), nn.Linear(4, 4)
        self.register_buffer("places", torch.arange(6))
        self.question = question

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        out: Tensor = self.yes(x) if self.question(self, lengths) else self.no(x)
        return out


def in_place(model: Any, lengths: Tensor) -> bool:
    mask = torch.zeros(6, dtype=torch.bool)
    mask[:3] = lengths > 1
    part = mask[:3]
    part.logical_not_()
    return bool(mask.any())


QUESTIONS: dict[str, tuple[Callable[[Any, Tensor], Any], bool]] = {
    "all": (lambda model, lengths: (lengths > 1).all(), True),
    "item": (lambda model, lengths: lengths.max().item() > 4, False),
    "a mask": (lambda model, lengths: (torch.arange(5)[None] < lengths[:, None]).sum() == 9, True),
    "nonzero": (lambda model, lengths: len((lengths == 4).nonzero()) == 2, False),
    "tolist": (lambda model, lengths: lengths.tolist() == [2, 3, 4], True),
    "a buffer": (lambda model, lengths: (model.places[2:5] == lengths).all(), True),
    "in place": (in_place, False),
    "floats of integers": (lambda model, lengths: lengths.float().mean() > 3.5, False),
    "equal": (lambda model, lengths: torch.equal(lengths, lengths.sort()[0]), True),
}


def inputs() -> Inputs:
    return Inputs(torch.ones(3, 4), torch.tensor([2, 3, 4]))


def ran(question: Callable[[Any, Tensor], Any], *, meta: bool = True) -> set[str]:
    """Which layers ran."""
    with torch.device("meta" if meta else "cpu"):
        model = Decides(question)
    model.places = torch.arange(6)
    graph = capture(model, inputs(), training=False)
    assert torch.equal(model.places, torch.arange(6))
    return {
        name for name, data in graph.nodes(data=True) if data["kind"] == "layer" and not data.get("unread")
    }


@pytest.mark.parametrize("name", QUESTIONS)
def test_answers(name: str) -> None:
    """The answer is that of real tensors; the weights are on `meta`, so nothing else could give it."""
    question, answer = QUESTIONS[name]
    assert ran(question) == {"yes" if answer else "no"}


UNKNOWN: dict[str, Callable[[Any, Tensor], Any]] = {
    "weights": lambda model, lengths: model.yes.weight.sum() > 0,
    "chance": lambda model, lengths: torch.randint(0, 2, (1,)).bool().any(),
    "unfilled": lambda model, lengths: torch.empty(3, dtype=torch.int64).any(),
    "written by what is unknown": lambda model, lengths: (
        (lengths + 0).copy_(model.yes.weight[0, :3].long()).any()
    ),
    "a view of that": lambda model, lengths: spoiled(model, lengths).any(),
    "many": lambda model, lengths: torch.zeros(2**20 + 1, dtype=torch.bool).any(),
}


def spoiled(model: Any, lengths: Tensor) -> Tensor:
    mine = lengths + 0
    view = mine[1:]
    mine.copy_(model.yes.weight[0, :3].long())
    return view


@pytest.mark.parametrize("name", UNKNOWN)
def test_no_answer(name: str) -> None:
    """What is made of activations, weights, chance or many elements is not known: no answer is made up."""
    with pytest.raises(CaptureError, match="on the meta device"):
        ran(UNKNOWN[name])


def test_real_tensors_answer_the_rest() -> None:
    """Where the weights are real, the model runs again with real tensors, as it did."""
    assert ran(UNKNOWN["unfilled"], meta=False) <= {"yes", "no"}
    assert ran(UNKNOWN["many"], meta=False) == {"no"}


def test_inputs_stay_as_they_are() -> None:
    """A model that writes its integer input writes a copy."""
    given = inputs()

    def question(model: Any, lengths: Tensor) -> Tensor:
        return lengths.add_(5).eq(7).any()

    graph = capture(Decides(question), given, training=False)
    assert "yes" in graph and torch.equal(given.args[1], torch.tensor([2, 3, 4]))
