"""Rules that users add, beside those that are there."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import baechi
from baechi.split import table
from baechi.split.dimension import ShardRange

ROWS = {"rows": baechi.SplitDimension({"weight": 0}, "cat")}


@pytest.fixture(autouse=True)
def _new(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table from which nothing was asked yet; the process keeps its own."""
    for name in ("_RULES", "_NAMES", "_FAMILIES"):
        monkeypatch.setattr(table, name, {})


class Doubled(nn.Module):
    """A product, twice."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(7, 4, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight.T * 2


def doubled(
    options: Mapping[str, Any], dimension: str, shard: ShardRange, x: torch.Tensor, weight: torch.Tensor
) -> torch.Tensor:
    return x @ weight.T * 2


def test_a_class_of_the_user() -> None:
    """Its shards have the values and gradients of the layer."""
    baechi.register_split(Doubled, ROWS, doubled, weights=["weight"])
    model, x = nn.Sequential(Doubled(), nn.Tanh()), torch.rand(3, 4, dtype=torch.float64)
    expected = model(x)
    expected.sum().backward()
    grad, model[0].weight.grad = model[0].weight.grad.clone(), None
    cluster = baechi.Cluster.virtual(3)
    baechi.distribute(model, x, cluster=cluster, split={"0": 3}, placer="round-robin", source="estimate")
    with cluster:
        made = model(x)
        made.sum().backward()
    assert torch.allclose(made, expected) and torch.allclose(model[0].weight.grad.cpu(), grad)


def test_the_rule_of_a_user_stays() -> None:
    """One for a class of torch replaces ours, whatever is looked for afterwards."""
    baechi.register_split(nn.Linear, ROWS, doubled, weights=["weight"])
    assert table.rule_of(nn.Embedding) is not None
    rule = table.rule_of(nn.Linear)
    assert rule is not None and rule.compute is doubled and table.rule_named("Linear") is rule


def test_two_classes_of_one_name() -> None:
    """A layer graph names a class shortly, so another one of that name is refused."""
    other = type("Linear", (Doubled,), {})
    with pytest.raises(
        ValueError, match=r"torch\.nn\.modules\.linear\.Linear is split by a rule of that name"
    ):
        baechi.register_split(other, ROWS, doubled, weights=["weight"])
    ours = table.rule_of(nn.Linear)
    assert ours is not None
    table.add_rule("torch.nn.modules.linear.Linear", replace(ours))
