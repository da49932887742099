"""`distribute` ends with one line about the plan, where it is asked for or somebody is at a terminal."""

import logging

import pytest
import torch
from torch import nn

import baechi


@pytest.mark.parametrize("verbose", [True, False, None])
@pytest.mark.parametrize("first_call", [True, False])
def test_the_last_line(verbose: bool | None, first_call: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """On the standard error; the standard output stays the program's. Also when planned at the first call."""
    model, batch = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), torch.ones(2, 4)
    cluster = baechi.Cluster.virtual(2)
    baechi.distribute(model, None if first_call else batch, cluster=cluster, placer="even", verbose=verbose)
    model(batch)
    printed = capsys.readouterr()
    assert printed.out == ""
    if verbose:
        line = printed.err.splitlines()[-1]  # after those of stages that took long
        assert line.startswith("Sequential on cpu:0 and cpu:1: step ")
        assert " on one device, fullest cpu:" in line
    else:
        assert printed.err == ""


def test_the_log_has_it(caplog: pytest.LogCaptureFixture) -> None:
    """The same line goes to the log at level INFO."""
    model, batch = nn.Linear(4, 4), torch.ones(2, 4)
    with caplog.at_level(logging.INFO, "baechi"):
        baechi.distribute(model, batch, cluster=baechi.Cluster.virtual(2))
    assert "Linear on cpu:0: step" in caplog.text


def test_every_verb_takes_it() -> None:
    """`profile`, `place` and `fits` take `verbose`, and return what they return without it."""
    model, batch, cluster = nn.Linear(4, 4), torch.ones(2, 4), baechi.Cluster.virtual(2)
    graph = baechi.profile(model, batch, cluster=cluster, verbose=True)
    assert baechi.place(graph, cluster, verbose=True).body() == baechi.place(graph, cluster).body()
    assert baechi.fits(model, batch, cluster, verify=False, verbose=True)
