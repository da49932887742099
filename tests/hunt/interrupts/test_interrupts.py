"""Interrupts and exceptions at random moments of a step, in five ways to run a model.

After each one: the thread's settings are as before, no thread and no tensor of the step is left, the next
step has the plain model's loss and gradients in double precision, and devices hold what they held. Every 25
cases the model is restored, and distributed again. More of them:

    PYTHONPATH=.:tests python -m hunt.interrupts --count 300
"""

import gc
import os
import threading
from collections.abc import Iterator

import pytest

from .cases import Hunt, rss_bytes
from .modes import MODES

MOST_GROWN_BYTES = 48 * 2**20
"""What caches of torch and Python may take besides."""


@pytest.fixture(autouse=True, scope="module")
def others_are_old() -> Iterator[None]:
    """What is there already is none of ours: looking for what is left takes no time."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def hunted(mode: str, seeds: range) -> None:
    """An interrupt and an exception for each seed."""
    hunt, before = Hunt(mode), set(threading.enumerate())
    grown_from = 0
    for seed in seeds:
        for interrupts in (True, False):
            hunt.case(seed, interrupts=interrupts)
        if seed == seeds.start + len(seeds) // 3:
            grown_from = rss_bytes()
    assert rss_bytes() - grown_from < MOST_GROWN_BYTES
    assert {thread for thread in threading.enumerate() if thread.is_alive()} <= before
    assert hunt.outcomes["interrupted"] > len(seeds) // 3


@pytest.mark.parametrize("mode", ["plain", "dispatched"])
def test_a_few(mode: str) -> None:
    hunted(mode, range(2))


@pytest.mark.full
@pytest.mark.parametrize("mode", MODES)
def test_twenty(mode: str) -> None:
    hunted(mode, range(100, 120))


@pytest.mark.nightly
@pytest.mark.parametrize("mode", MODES)
def test_three_hundred(mode: str) -> None:
    start = int(os.environ.get("BAECHI_HUNT_FROM", "1000"))
    hunted(mode, range(start, start + 300))
