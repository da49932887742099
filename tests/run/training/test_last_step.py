"""What is told of the last step inside of `with cluster:`."""

import re

import pytest
import torch
from run.training.towers import batch, loss_on, momentum, spread, towers
from torch import nn

import baechi


def test_last_step() -> None:
    """A step that was measured has its phases, its transfers, its peaks; it can be read any time later."""
    model = towers()
    cluster = spread(model)
    optimizer = momentum(model)
    with cluster:
        for _ in range(2):
            optimizer.zero_grad()
            loss_on(model, batch()).backward()
            optimizer.step()
        measured = baechi.last_step(model)
    assert baechi.last_step(model) == measured
    assert {span.phase for span in measured.spans} == {"forward", "backward", "other"}
    assert {span.where for span in measured.spans if span.kind == "transfer"} == {
        "host>cpu:0", "host>cpu:1", "cpu:0>cpu:1", "cpu:1>cpu:2", "cpu:2>host",
        "host>cpu:2", "cpu:2>cpu:1", "cpu:1>cpu:0",
    }  # fmt: skip
    # the batch twice, the left branch, both branches, the output; the same back but for the batch
    assert measured.counters["transfers"] == 8
    assert measured.counters["transfer_bytes"] == 2 * 120 + 160 + 320 + 60 + (60 + 320 + 160)
    assert all(measured.peak_bytes[name] > 0 for name in cluster.names)
    assert measured.makespan_s > 0


def test_peaks_by_hand() -> None:
    """The peak of a small step is what one counts on paper."""
    model, cluster = nn.Linear(4, 4, bias=False), baechi.Cluster.virtual(1)
    baechi.distribute(model, torch.ones(2, 4), cluster=cluster)
    with cluster:
        with torch.no_grad():
            model(torch.ones(2, 4))
        assert baechi.last_step(model).peak_bytes == {"cpu:0": 64 + 32 + 32}  # weight, input, output
        loss = model(torch.ones(2, 4)).sum()
        loss.backward()
        # in backward: weight, input, gradient of the output (one number, expanded), gradient of the weight
        assert baechi.last_step(model).peak_bytes == {"cpu:0": 64 + 32 + 4 + 64}


def test_nothing_was_measured() -> None:
    """Without a step inside of `with` there is nothing to tell, and the error says what to do."""
    model = towers()
    cluster = spread(model)
    unmeasured = re.escape("inside `with cluster:`")
    with pytest.raises(baechi.BaechiError, match=unmeasured):
        baechi.last_step(model)
    model(batch())
    with pytest.raises(baechi.BaechiError, match=unmeasured):
        baechi.last_step(model)
    with cluster:
        model(batch())
        assert baechi.last_step(model).makespan_s > 0
    model(batch())
    with pytest.raises(baechi.BaechiError, match=unmeasured):
        baechi.last_step(model)
