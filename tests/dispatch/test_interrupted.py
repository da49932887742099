"""A signal's handler may raise at any point of a dispatched call: threads end, and the next call is right."""

import threading
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from dispatch.chunks_of import mlp
from run.pipeline.lanes.interrupted import Interrupted, Interruption, each_point

import baechi

FILES = (
    "/dispatched_model.py",
    "/loop.py",
    "/workers/threads.py",
    "/replicas.py",
    "/replicas/weights.py",
    "/flag.py",
)
X = torch.linspace(-1, 1, 48, dtype=torch.float64).view(6, 8)
MANY_S = 30.0


@pytest.mark.default_cases(1)
@pytest.mark.parametrize("emulated", [False, True])
def test_at_each_point(emulated: bool) -> None:
    """Also while the traceback is held, as a notebook holds it; and weights that changed are copied."""
    model, cluster = mlp(torch.float64), baechi.Cluster.virtual(2)
    hybrid = baechi.HybridScheduler(cluster, batch_sizes=[2, 2])
    scheduler: Any = hybrid if emulated else baechi.RoundRobin(2, batch_size=2)
    dispatched = baechi.dispatch(model, scheduler, workers="thread", out=("cat", 0))
    before, held = set(threading.enumerate()), []

    def called() -> torch.Tensor:
        with cluster if emulated else nullcontext(), torch.no_grad():
            result: torch.Tensor = dispatched(X).cpu()
        return result

    def run(interruption: Interruption) -> None:
        with torch.no_grad():
            next(model.parameters()).mul_(-1.0)
        try:
            with cluster if emulated else nullcontext(), torch.no_grad(), interruption.within():
                dispatched(X)
        except Interrupted as error:
            held[:] = [error]
        for thread in set(threading.enumerate()) - before:
            if thread.is_alive():
                thread.join(MANY_S)
            assert not thread.is_alive(), interruption.where

    called()
    count = 0
    for interruption in each_point(FILES, run, 7 if emulated else 2):
        with torch.no_grad():
            assert torch.allclose(called(), model(X), rtol=0, atol=1e-14), interruption.where
        count += 1
    assert count > 20
