"""Random models in random ways compute what the plain model computes.

A seed is a model, run in two ways. The nightly tier runs a hundred; more by

    BAECHI_HUNT=20000 python -m pytest -n 2 --tier nightly tests/hunt

and from another seed on with `BAECHI_HUNT_FROM`. A failure is shrunk, and printed as a program.
`PYTHONPATH=tests python -m hunt` makes a table of all that fails.
"""

import os

import pytest

from .case import cases, judged
from .program import program
from .shrink import shrunk
from .world import EMULATED

pytestmark = pytest.mark.nightly

COUNT = int(os.environ.get("BAECHI_HUNT", "100"))
START = int(os.environ.get("BAECHI_HUNT_FROM", "0"))
CHUNK = 25


@pytest.mark.parametrize("start", range(START, START + COUNT, CHUNK))
def test_hunt(start: int) -> None:
    """Outputs, buffers and attributes to the bit, gradients in double precision, inputs where they were."""
    for seed in range(start, min(start + CHUNK, START + COUNT)):
        for verdict in judged(cases(seed, EMULATED), EMULATED):
            if verdict.outcome == "failed":
                smallest = shrunk(verdict, EMULATED)
                pytest.fail(f"seed {seed}: {smallest.failure}\n{program(smallest)}", pytrace=False)
