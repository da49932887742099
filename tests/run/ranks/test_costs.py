"""What a step asks of a rank's host, counted: messages, and calls of our functions.

rank 0   F0 ─▶ F0 ─▶      B0       B0        two values cross the cut, in one message each way
rank 1         F1   F1 B1 ─▶  B1 ─▶          and two more, of all ranks: what they were given, and the loss
"""

import os
import sys
from collections import Counter
from types import FrameType
from typing import Any

import pytest
import torch
from run.ranks.jobs import EXACT
from run.ranks.processes import Ranks
from torch import Tensor, nn

import baechi
from baechi.backend.ranks.wires import Wires
from baechi.records.pipeline import Pipeline

ROWS = 12
OURS = os.path.dirname(baechi.__file__)
MESSAGES = "send", "receive", "share", "gather", "add_up", "gather_objects"
FEW, MANY = 2, 6
MOST_A_STEP, MOST_A_MICROBATCH = 335, 155
"""Calls of functions of ours: by Python 3.11, and a twentieth more."""


class Crossing(nn.Module):
    """Two values of the first layer are read behind the second one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        gate = hidden.sigmoid()
        return (self.second(hidden) * gate).square().mean()


def of_two_ranks(number: int) -> str:
    model, x = Crossing(), torch.zeros(ROWS, 8)
    cluster = baechi.Cluster.virtual(2, memory="1GiB")
    graph = baechi.profile(model, x, cluster=cluster, source="estimate", microbatches=number)
    first, second = cluster.names
    plan = baechi.Plan.from_device_map(graph, cluster, {"first": first, "second": second})
    return baechi.pipeline(plan, number, "1f1b").to_json()


def counted(text: str) -> tuple[dict[str, int], int]:
    """Messages of one step, by kind, and calls of our functions in it."""
    torch.manual_seed(0)
    model, x = Crossing(), torch.randn(ROWS, 8)
    plan = Pipeline.from_json(text)
    baechi.distribute(model, x, plan=plan, loss_weights="rows", compile=EXACT)
    for _ in range(2):
        model(x).backward()
    found: Counter[str] = Counter()
    codes = {getattr(Wires, name).__code__: name for name in MESSAGES}

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(OURS):
            found["calls"] += 1
            found[codes.get(frame.f_code, "others")] += 1

    model.zero_grad()
    sys.setprofile(note)
    try:
        model(x).backward()
    finally:
        sys.setprofile(None)
    return {name: found[name] for name in MESSAGES if found[name]}, found["calls"]


@pytest.fixture(scope="module")
def steps(two: Ranks) -> dict[int, list[tuple[dict[str, int], int]]]:
    found = {}
    for number in (FEW, MANY):
        found[number] = two(counted, of_two_ranks(number))
        for one in found[number]:
            assert not isinstance(one, Exception), one
    return found


@pytest.mark.parametrize("rank", [0, 1])
def test_messages(steps: dict[int, list[tuple[dict[str, int], int]]], rank: int) -> None:
    """A microbatch is one each way, whatever crosses; a step is two more, which all ranks take part in."""
    for number, found in steps.items():
        assert found[rank][0] == {"send": number, "receive": number, "share": 1, "gather": 1}


@pytest.mark.parametrize("rank", [0, 1])
def test_calls(steps: dict[int, list[tuple[dict[str, int], int]]], rank: int) -> None:
    """Functions of ours that run in a step: so many, and so many more for each microbatch."""
    few, many = steps[FEW][rank][1], steps[MANY][rank][1]
    each = (many - few) / (MANY - FEW)
    assert each <= MOST_A_MICROBATCH
    assert few - FEW * each <= MOST_A_STEP
