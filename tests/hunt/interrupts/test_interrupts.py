"""Interrupts and exceptions at random moments of a step, in five ways to run a model.

After each one: the thread's settings are as before, no thread and no tensor of the step is left, the next
step has the plain model's loss and gradients in double precision, and devices hold what they held. Every 25
cases the model is restored, and distributed again. More of them:

    PYTHONPATH=.:tests python -m hunt.interrupts --count 300
"""

import contextlib
import gc
import os
import threading
from collections.abc import Iterator

import pytest
import torch

import baechi
from baechi.backend.virtual import Emulation

from .cases import Hunt, rss_bytes, settings
from .interruption import AtPoints
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


@pytest.mark.parametrize("leaving", [False, True])
def test_each_point_of_an_emulation(leaving: bool) -> None:
    """Torch's notes of a mode were taken off another way than they had been put on: the mode stayed. And the
    compiler stayed aside.

    (Where `__exit__` itself is interrupted as it begins, Python does not leave the context.)
    """
    torch.compiler.set_stance("default")  # imports the compiler, which is set aside
    cluster, before = baechi.Cluster.virtual(2), settings()

    def emulate(interruption: AtPoints) -> None:
        emulation = Emulation(cluster)
        if not leaving:
            interruption.__enter__()
        try:
            with emulation:
                (interruption.__enter__ if leaving else interruption.__exit__)()
        finally:
            interruption.__exit__()

    counting = AtPoints()
    emulate(counting)
    assert counting.points > 20
    for point in range(2, counting.points + 1):  # at the first one __enter__ or __exit__ itself begins
        at = AtPoints((point,))
        with contextlib.suppress(KeyboardInterrupt):
            emulate(at)
        assert settings() == before, at.where
        with cluster:
            pass


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
