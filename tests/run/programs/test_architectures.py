"""Architectures with a difficulty each, as programs: what a loop over the parts computes."""

import pytest
from architectures import OWN, loss_of
from run.pipeline.by_loop import WithLoss, assert_as_loop, batch_of
from run.programs.sweep import EVERY, MICROBATCHES, case, outcome

import baechi

ORDERS = ("auto", "gpipe", "1f1b", "interleaved")
NAMES = ("two_branches", "cell_loop", "in_place_views", "nested")
BY_NAME = {architecture.name: architecture for architecture in OWN}


@pytest.mark.full
@pytest.mark.parametrize("number", range(len(NAMES)), ids=NAMES)
def test_as_the_loop(number: int) -> None:
    """Random placements on two to four devices; rows that do not divide; each order once."""
    architecture = BY_NAME[NAMES[number]]
    assert_as_loop(
        WithLoss(architecture.build(), loss_of).train().double(),
        batch_of(architecture.inputs(), 5),
        2 + number % 2,
        devices=2 + number % 3,
        placer=f"random:{number}",
        order=ORDERS[number],
        compile=baechi.Stages(backend="aot_eager"),
    )


@pytest.mark.nightly
@pytest.mark.parametrize("microbatches", MICROBATCHES)
@pytest.mark.parametrize("number", range(len(EVERY)), ids=[one.name for one in EVERY])
def test_every_architecture(number: int, microbatches: int) -> None:
    """As the loop, or refused with a line, or it does not run without programs either."""
    found = outcome(EVERY[number], microbatches, case(number, microbatches))
    assert found.kind != "wrong", found.why
    if found.kind == "refused":
        assert "compile='auto'" in found.why
