"""Plans whose shards are no shares of a model's layers are refused before anything is changed."""

import json
from typing import Any

import pytest
import torch
from run.split.split_layers import split_on
from torch import nn

import baechi
from baechi.errors import PlanError
from baechi.records import Plan


class Network(nn.Module):
    """Two linear layers and attention, so that there are shards with and without units."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 8)
        self.attend = nn.MultiheadAttention(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.last(self.first(x).relu())
        made: torch.Tensor = self.attend(x, x, x)[0]
        return made


@pytest.fixture(scope="module")
def text() -> str:
    """The plan of a model with two split layers."""
    model = Network()
    split_on(2, model, torch.ones(3, 4), {"first": 2, "attend": 2})
    plan = baechi.plan_of(model)
    assert baechi.assign(Network(), Plan.from_json(plan.to_json()))
    return plan.to_json()


CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "a number twice": ({"number": 0}, r"shards of first have the numbers \[0, 0\]"),
    "an unknown dimension": ({"dimension": "x"}, "first is split along 'x': it can be along out, in"),
    "another dimension": ({"dimension": "in"}, r"along in it would be {'weight': 1}"),
    "an axis beyond": ({"cuts": {"weight": 9, "bias": 0}}, "along out it would be {'weight': 0, 'bias': 0}"),
    "no cuts": ({"cuts": {}}, "first is cut along {}"),
    "a function": ({"function": "linear"}, "first is no functional op 'linear'"),
    "units": ({"sizes": [2, 2], "units": {"weight": [2, 1], "bias": [2, 1]}}, "its units say"),
    "another layer": ({"of": "last"}, r"first\[0\], layer of the module .*, says that it is last\[0\]"),
    "a vector": (
        {"dimension": "in", "cuts": {"weight": 1}, "tied": {"weight": ["last.bias"]}},
        r"last.bias has the shape \(8,\): the plan cuts 8 along axis 1",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_wrong_tiles(change: str, text: str) -> None:
    """Shards that say something else than their layer's rule, or than each other."""
    said, why = CHANGES[change]
    body = json.loads(text)
    for _, data in body["graph"]["nodes"]:
        if data.get("shard", {}).get("of") == "first":
            data["shard"].update(said)
    refused(json.dumps(body), why)


@pytest.mark.parametrize("name", ["first[7]", "last[1]", "x"])
def test_wrong_names(name: str, text: str) -> None:
    """Shards, and joins, are called as what they are parts of."""
    refused(text.replace('"first[1]"', f'"{name}"'), r"says that it is first\[1\]")
    refused(text.replace('"attend[join]"', f'"{name}"'), r"says that it is attend\[join\]")


def test_wrong_sums_and_heads(text: str) -> None:
    """What is added has a join; attention has as many heads as its shards."""
    body = json.loads(text)
    nodes = dict(body["graph"]["nodes"])
    for number in range(2):
        shard = nodes[f"attend[{number}]"]["shard"]
        shard["sizes"] = [1, 1]
        shard["units"] = {weight: [count, 2 * unit] for weight, (count, unit) in shard["units"].items()}
    nodes["attend[join]"].pop("joins")
    refused(json.dumps(body), "(?s)attend has 4 heads, and its shards 2.*the plan has no attend")


def test_wrong_broadcasts() -> None:
    """What sends weights to shards of rows is called after their layer, and there are such shards."""
    model = Network()
    split_on(2, model, torch.ones(4, 3, 4), {"first": {"rows": 2}})
    text = baechi.plan_of(model).to_json()
    refused(text.replace('"first[broadcast]"', '"x"'), r"says that it is first\[broadcast\]")
    refused(
        text.replace('"broadcasts": "first"', '"broadcasts": "last"'), "last, which has no shards of rows"
    )
    body = json.loads(text)
    dict(body["graph"]["nodes"])["first[broadcast]"].pop("broadcasts")
    refused(json.dumps(body), r"the plan's layer first\[broadcast\] is not in the model")


def test_a_layer_that_is_another_now(text: str) -> None:
    """A plan that splits what cannot be split in this model is refused by name."""
    model = Network()
    first = model.first
    first.forward = lambda x: 2 * nn.functional.linear(x, first.weight)  # type: ignore[method-assign]
    with pytest.raises(PlanError, match=r"the plan splits first, and .* its forward was replaced"):
        baechi.assign(model, Plan.from_json(text))


def refused(text: str, why: str) -> None:
    """A plan is refused, and the model is as it was."""
    model = Network()
    with pytest.raises(PlanError, match=why):
        baechi.assign(model, Plan.from_json(text))
    assert {type(weight) for weight in model.parameters()} == {nn.Parameter}
    assert not [name for module in model.modules() for name in vars(module) if name.startswith("_baechi")]


def test_whole_numbers_of_files(text: str) -> None:
    """A file that says 2.0 is read as one that says 2."""
    body = json.loads(text, parse_int=float)
    body["schema"] = 1
    read = Plan.from_json(json.dumps(body))
    shards = [costs.shard for _, costs in read.graph.placed_costs() if costs.shard]
    numbers = [
        number for shard in shards for number in (*shard["sizes"], shard["number"], *shard["cuts"].values())
    ]
    assert numbers and {type(number) for number in numbers} == {int}
    assert baechi.assign(Network(), read)
