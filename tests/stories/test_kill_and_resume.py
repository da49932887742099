"""A story: a run is killed between two steps, and goes on from its checkpoint on another cluster."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from stories.killed_run import STEPS, batch, build, train
from stories.weights import assert_same_weights

import baechi

pytestmark = pytest.mark.full


def test_killed_and_resumed(tmp_path: Path) -> None:
    """Losses and weights are those of a plain run that nothing interrupted."""
    script = Path(__file__).with_name("killed_run.py")
    running = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert running.stdout is not None
    for line in running.stdout:
        if line == "saved 3\n":
            running.kill()
            break
    assert running.wait() == -signal.SIGKILL

    plain = build()
    torch.manual_seed(1)
    expected = train(plain, tmp_path / "plain.pt", checkpoint=False)

    others = baechi.Cluster.virtual(like=["RTX-4090", "RTX-3090", "L4"])
    model = baechi.distribute(build(), batch(0)[0], cluster=others, placer="round-robin", optimizer="adam")
    assert len(baechi.plan_of(model).devices_used) == 3
    with others:
        losses = train(model, tmp_path / "last.pt")
    assert min(losses) >= 3  # what was saved is not done again
    assert max(losses) == STEPS - 1
    assert losses == pytest.approx({step: expected[step] for step in losses}, rel=1e-5)
    assert_same_weights(model, plain)
