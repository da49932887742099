"""How inputs are divided: by rows, by items, as the user says; and what an error says where that is wrong."""

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from run.pipeline.by_loop import assert_same_gradients
from run.pipeline.nets import noise, pipelined, seeded
from torch import Tensor, nn
from torch.nn import functional as F

import baechi
from baechi import Inputs
from baechi.errors import BatchCoupled, CaptureError

WHERE = {"": 0, "a": 0, "b": 1}
LABELS = torch.tensor([0, 1, 2, 3, 4, 5, 0, 1])


class Net(nn.Module):
    """Two layers; a function says what comes before and after them."""

    def __init__(self, code: Callable[..., Tensor]) -> None:
        super().__init__()
        self.a, self.b, self.code = nn.Linear(6, 6), nn.Linear(6, 6), code

    def forward(self, x: Any, more: Any = None, labels: Any = None) -> Any:
        return self.code(lambda rows: self.b(self.a(rows).tanh()), x, more, labels)


def stepped(code: Callable[..., Tensor], inputs: Inputs, microbatches: int = 4, **options: Any) -> None:
    """A step in microbatches has the loss and the gradients of the whole."""
    model = seeded(lambda: Net(code))
    plain = copy.deepcopy(model)
    options = {"device_map": WHERE, "order": "1f1b", **options}
    with pipelined(model, inputs, microbatches=microbatches, **options):
        found = model(*inputs.args, **inputs.kwargs)
        found.backward()
    expected = plain(*inputs.args, **inputs.kwargs)
    expected.backward()
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
    assert_same_gradients(model, plain)


def told(error: Exception) -> str:
    return "\n".join([str(error), *getattr(error, "__notes__", ())])


# --- what shares the batch's size by accident


def scaled(net: Any, x: Tensor, more: Tensor, labels: Tensor) -> Tensor:
    return F.mse_loss(net(x) * more, labels)


def placed(net: Any, x: Tensor, more: Tensor, labels: Tensor) -> Tensor:
    return F.mse_loss(net(x + more.sum(0)), labels)


def masked(net: Any, x: Tensor, more: Tensor, labels: Tensor) -> Tensor:
    return F.mse_loss(more.double().softmax(-1) @ net(x), labels)


def weighed(net: Any, x: Tensor, more: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(net(x), labels, weight=more)


def time_first(net: Any, x: Tensor, more: Tensor, labels: Tensor) -> Tensor:
    return F.mse_loss(net(x.cumsum(0)) * more, labels)


WRONG = {
    "scale": (scaled, (noise(6, 6), noise(6, seed=3), noise(6, 6, seed=4)), "{'more': None}"),
    "position_ids": (placed, (noise(4, 5, 6), noise(3, 4, 5, 6), noise(4, 5, 6, seed=4)), "{'more': 1}"),
    "position_ids, three rows": (placed, (noise(3, 5, 6), noise(3, 3, 5, 6), noise(3, 5, 6)), "{'more': 1}"),
    "mask": (masked, (noise(4, 4, 6), torch.eye(4), noise(4, 4, 6, seed=4)), "{'more': None}"),
    "weights of classes": (weighed, (noise(6, 6), noise(6).abs() + 0.1, LABELS[:6]), "{'more': None}"),
    "time first": (
        time_first,
        (noise(5, 4, 6), noise(4, 1), noise(5, 4, 6, seed=4)),
        "{'x': 1, 'labels': 1}",
    ),
}


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.parametrize(("by_name", "number"), [(False, 3), (True, 2)])
def test_the_error_names_the_input(case: str, by_name: bool, number: int) -> None:
    """And how it is to be divided, before anything trains: found by running with it so."""
    code, given, cure = WRONG[case]
    names = ("x", "more", "labels")
    inputs = Inputs(**dict(zip(names, given, strict=True))) if by_name else Inputs(*given)
    with pytest.raises((CaptureError, BatchCoupled)) as caught:
        stepped(code, inputs, number)
    assert f"split={cure}" in told(caught.value)


@pytest.mark.parametrize("case", [case for case in WRONG if case != "weights of classes"])
def test_what_the_error_says_is_right(case: str) -> None:
    """Said so, a step is that of the whole batch."""
    code, given, cure = WRONG[case]
    stepped(code, Inputs(*given), 3, split=eval(cure))


@dataclasses.dataclass
class Batch:
    """What a loader hands on."""

    x: Tensor
    scale: Tensor
    labels: Tensor


@pytest.mark.parametrize("made", [dict, Batch])
def test_a_value_in_a_batch(made: Callable[..., Any]) -> None:
    """It is named by its way: `x.scale`, of a mapping or a dataclass that is the input x."""

    def code(net: Any, x: Any, *_: Any) -> Tensor:
        each = x if isinstance(x, Mapping) else vars(x)
        return F.mse_loss(net(each["x"]) * each["scale"], each["labels"])

    inputs = Inputs(made(x=noise(6, 6), scale=noise(6, seed=3), labels=noise(6, 6, seed=4)))
    with pytest.raises(CaptureError) as caught:
        stepped(code, inputs, 3)
    assert "split={'x.scale': None}" in told(caught.value)
    stepped(code, inputs, 3, split={"x.scale": None})


def test_a_later_batch_has_that_size() -> None:
    """Eight rows fit, and six do not: the step says so, and how inputs are to be divided."""
    model = seeded(lambda: Net(scaled))
    with pipelined(
        model, Inputs(noise(8, 6), noise(6), noise(8, 6)), microbatches=2, device_map=WHERE, order="1f1b"
    ):
        model(noise(8, 6), noise(6), noise(8, 6)).backward()
        with pytest.raises(ValueError, match=r"split={'more': None} gives the same as the whole batch"):
            model(noise(6, 6), noise(6), noise(6, 6))


# --- lists


def of_each(net: Any, x: Sequence[Tensor], more: Any, labels: Any) -> Tensor:
    """Images, or sequences, that are as long as they are; rows of six."""
    rows = torch.stack([net(one.reshape(-1, 6)).mean(0) for one in x])
    return rows.square().mean() if labels is None else F.cross_entropy(rows, labels)


def detected(net: Any, x: Sequence[Tensor], more: Any, labels: Sequence[Mapping[str, Tensor]]) -> Tensor:
    pairs = zip(x, labels, strict=True)
    return torch.stack(
        [F.mse_loss(net(one.mean((0, 1))), found["boxes"].sum(0)) for one, found in pairs]
    ).mean()


def of_words(net: Any, x: Sequence[str], more: Any, labels: Tensor) -> Tensor:
    rows = torch.tensor([[float(len(word) % n) for n in range(2, 8)] for word in x], dtype=torch.float64)
    return F.cross_entropy(net(rows), labels)


def of_pairs(net: Any, x: tuple[Sequence[str], Sequence[Tensor]], more: Any, labels: Any) -> Tensor:
    return torch.stack([net(one).mean() * len(word) for word, one in zip(*x, strict=True)]).square().mean()


def of_arrays(net: Any, x: Any, more: Any, labels: Any) -> Tensor:
    return F.cross_entropy(net(torch.from_numpy(x)), torch.as_tensor(labels))


def of_levels(net: Any, x: Sequence[Tensor], more: Any, labels: Any) -> Tensor:
    return sum(net(one).square().mean() for one in x)  # type: ignore[return-value]


IMAGES = [noise(3, 4, 6, seed=seed) for seed in range(6)]
SEQUENCES = [noise(2 + length, 6, seed=length) for length in range(6)]
BOXES = [{"boxes": noise(length, 6, seed=length)} for length in range(1, 7)]
WORDS = ["a", "of", "the", "word", "words", "letter"]
ARRAY = np.arange(36.0).reshape(6, 6) % 7

LISTS: dict[str, tuple[Callable[..., Tensor], Inputs]] = {
    "images alone": (of_each, Inputs(IMAGES)),
    "as many images as channels": (of_each, Inputs(IMAGES[:3], None, LABELS[:3])),
    "sequences": (of_each, Inputs(SEQUENCES, labels=LABELS[:6])),
    "targets": (detected, Inputs(IMAGES, labels=BOXES)),
    "words": (of_words, Inputs(x=WORDS, labels=LABELS[:6])),
    "lists in a tuple": (of_pairs, Inputs((WORDS, SEQUENCES))),
    "images": (of_each, Inputs(IMAGES, None, LABELS[:6])),
    "sequences as long as each other": (of_each, Inputs([one[:2] for one in SEQUENCES], labels=LABELS[:6])),
    "tuples of a loader": (detected, Inputs(tuple(IMAGES), labels=tuple(BOXES))),
    "two lists in a tuple": (of_pairs, Inputs((WORDS[:2], SEQUENCES[:2]))),
    "arrays": (of_arrays, Inputs(ARRAY, labels=np.arange(6) % 5)),
    "an array and numbers": (of_arrays, Inputs(ARRAY, labels=[0, 1, 2, 3, 4, 0])),
    "levels with rows": (of_levels, Inputs([noise(6, 2, 6), noise(6, 3, 6)])),
    "as many levels as rows": (of_levels, Inputs([noise(2, 2, 6), noise(2, 3, 6)])),
}


@pytest.mark.parametrize("case", LISTS)
def test_lists(case: str) -> None:
    """A list with an item a row is divided by items; what has rows inside, by these."""
    stepped(*LISTS[case], 2)


def test_gradients_of_items() -> None:
    """They come back to the tensors in the list, also where one is there twice."""
    grads = []
    for divide in (True, False):
        given = [one.clone().requires_grad_() for one in SEQUENCES[:3]]
        batch = Inputs([*given, given[0]], labels=LABELS[:4])
        model = seeded(lambda: Net(of_each))
        if divide:
            pipelined(model, batch, microbatches=4, device_map=WHERE, order="1f1b")
        model(*batch.args, **batch.kwargs).backward()
        grads.append([one.grad for one in given])
    torch.testing.assert_close(*grads)


def test_items_by_accident() -> None:
    """Four sequences of four, or of eight alone: the error says that items are rows."""
    four, eight = ([noise(length, 6, seed=seed) for seed in range(4)] for length in (4, 8))
    for inputs in (Inputs(four, labels=LABELS[:4]), Inputs(eight)):
        with pytest.raises((CaptureError, BatchCoupled)) as caught:
            stepped(of_each, inputs, 2)
        assert "split={'x': 'items'} gives the same" in told(caught.value)
        stepped(of_each, inputs, 2, split={"x": "items"})


def test_what_is_taken_for_the_rows_is_named() -> None:
    """Where the first input has fewer than there are microbatches, and others have more."""
    with pytest.raises(ValueError, match=r"These are the rows of x: if 8 .* say split={'x': 1}"):
        stepped(placed, Inputs(noise(3, 8, 6), noise(8, 6), noise(8, 6)))
    with pytest.raises(ValueError, match=r"the batch has 3 rows.*fewer microbatches$"):
        stepped(scaled, Inputs(noise(3, 6), noise(1, 6), noise(3, 6)))


# --- what the user divides


def each_own(name: str, value: Any, number: int) -> list[Any]:
    """In unequal parts, as long as there are enough rows."""
    assert name in ("x", "labels")
    return list(value.split([1, 3, 2, 2] if number == 4 else 1))


def test_a_function_divides() -> None:
    """All other inputs have the rows that its parts have; a smaller batch is asked for fewer."""
    model = seeded(lambda: Net(scaled))
    plain = copy.deepcopy(model)
    batch = noise(8, 6), noise(1, 6), noise(8, 6, seed=4)
    cluster = pipelined(
        model, Inputs(*batch), microbatches=4, device_map=WHERE, order="1f1b", split={"x": each_own}
    )
    for rows in (8, 3):
        for network, where in ((model, cluster), (plain, nullcontext())):
            network.zero_grad()
            with where:
                network(batch[0][:rows], batch[1], batch[2][:rows]).backward()
        assert_same_gradients(model, plain)


def test_a_function_divides_what_only_it_knows() -> None:
    """An object with rows, which nothing else can divide."""

    class Rows:
        def __init__(self, rows: Tensor) -> None:
            self.rows = rows

    def code(net: Any, x: Rows, *_: Any) -> Tensor:
        return net(x.rows).square().mean()

    def divide(name: str, value: Rows, number: int) -> list[Rows]:
        return [Rows(one) for one in value.rows.chunk(number)]

    stepped(code, Inputs(Rows(noise(8, 6))), split={"x": divide})


def test_parts_are_given() -> None:
    """What each microbatch gets, for all steps; a copy of the model has it, too."""
    stepped(scaled, Inputs(noise(8, 6), noise(6), noise(8, 6)), split={"more": [noise(6)] * 4})


def test_functions_go_with_a_pipeline_of_a_file(tmp_path: Any) -> None:
    """The file holds what is said of inputs but for functions; these are given again."""
    how = {"more": None, "x": lambda name, value, number: list(value.chunk(number))}
    model, batch = seeded(lambda: Net(scaled)), Inputs(noise(8, 6), noise(8, 6), noise(8, 6, seed=4))
    pipelined(model, batch, device_map=WHERE, split={"x": how["x"], "labels": 0})
    baechi.plan_of(model).save(tmp_path / "pipeline.json")
    pipeline = baechi.Pipeline.load(tmp_path / "pipeline.json")
    assert dict(pipeline.split) == {"labels": 0}
    again = seeded(lambda: Net(scaled))
    baechi.distribute(again, plan=pipeline, split={"x": how["x"]})
    for network in (model, again):
        network(*batch.args).backward()
    assert_same_gradients(again, model)


MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "too few parts": ({"x": lambda *_: [1]}, "the function that divides x returns 1 parts, and there are 4"),
    "no parts": ({"x": lambda *_: 1}, "returns a int"),
    "given parts": ({"x": [1, 2]}, "split has for x 2 parts"),
    "no way": ({"x": "rows"}, "split says 'rows' of the input 'x'"),
    "no input": ({"mor": None}, "no layer and no input of this Net: is it 'more'"),
    "another dimension": ({"x": 1, "more": 0}, "split says dimension 0 of more, which has 1 entries"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes(case: str) -> None:
    """What is said of inputs and cannot be is told when the model is distributed."""
    split, text = MISTAKES[case]
    inputs = Inputs(noise(8, 6), noise(1, 6), noise(8, 6))
    with pytest.raises(ValueError, match=text):
        stepped(scaled, inputs, split=split)


def test_a_gradient_through_a_function_is_refused() -> None:
    """It would be lost; the cure is said."""
    inputs = Inputs(noise(8, 6).requires_grad_(), noise(1, 6), noise(8, 6))
    with pytest.raises(ValueError, match=r"x needs a gradient.*split={'x': 0}"):
        stepped(scaled, inputs, split={"x": each_own})
