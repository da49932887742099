"""What a signal's handler raises in the emulator's own work reaches the caller as it is."""

import pytest
import torch

from baechi import Cluster
from baechi.backend.virtual.machine.allocator import Allocator
from baechi.cost.clock import COMPUTE, Clock, Job
from baechi.cost.machine import Machine


class Interrupted(Exception):
    """What a signal's handler raises."""


def _raises(*_: object) -> None:
    raise Interrupted


@pytest.mark.parametrize("goes_on", [True, False])
def test_while_memory_is_freed(goes_on: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python drops what `__del__` raises: it comes with the next operation, or at the cluster's end."""
    reached = []
    with pytest.raises(Interrupted), Cluster.virtual(2):
        x = torch.ones(2, device="cpu:1")
        y = x + 1
        with monkeypatch.context() as patch:
            patch.setattr(Allocator, "_come_back", _raises)
            del y
        reached.append("freed")
        if goes_on:
            x + 1
            reached.append("went on")
    assert reached == ["freed"]
    with Cluster.virtual(2):
        torch.ones(2, device="cpu:1") + 1


def test_while_a_job_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was lost is not waited for, and nor is what comes after it."""
    clock = Clock(Machine(Cluster.virtual(2)))
    first, second = (Job(0, COMPUTE, 1.0) for _ in range(2))
    clock.submit(first, 0.0, [])
    clock.submit(second, 0.0, [first])
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr(Machine, "compute", _raises)
        clock.settle(5.0)
    assert clock.finish([second]) == 0.0
