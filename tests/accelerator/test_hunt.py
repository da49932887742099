"""The hunt on the test accelerator: random models, with nothing that draws.

`BAECHI_HUNT_TOY` says how many seeds, `BAECHI_HUNT_FROM` which is the first.
"""

import os
from typing import Any

import pytest
from hunt.case import cases, judged
from hunt.program import program
from hunt.shrink import shrunk
from hunt.world import World
from torch import nn

from accelerator import NAMES, ToyMachine

from .devices import cluster, there
from .where import moved

pytestmark = pytest.mark.full

COUNT = int(os.environ.get("BAECHI_HUNT_TOY", "30"))
START = int(os.environ.get("BAECHI_HUNT_FROM", "0"))


def _home(value: Any) -> Any:
    return moved(value) if isinstance(value, nn.Module) else there(value)


TOY = World(lambda count: cluster(*NAMES[:count]), _home, draws=False)


@pytest.mark.parametrize("seed", range(START, START + COUNT))
def test_hunt(toy: ToyMachine, seed: int) -> None:
    """What the plain model leaves on one device; and nothing is unordered, see `toy`."""
    for verdict in judged(cases(seed, TOY), TOY):
        if verdict.outcome == "failed":
            smallest = shrunk(verdict, TOY)
            toy.restart(late=False)  # faults of candidates count no more
            pytest.fail(f"seed {seed}: {smallest.failure}\n{program(smallest)}", pytrace=False)
