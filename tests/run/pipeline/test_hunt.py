"""Random models in microbatches compute what a loop over the parts does, or say why they do not.

A seed is a model, a placement and an order. The suite runs forty; more by

    BAECHI_HUNT=2000 python -m pytest tests/run/pipeline/test_hunt.py

and from another seed on with `BAECHI_HUNT_FROM`.
"""

import os

import pytest
from run.pipeline.hunted import outcome

COUNT = int(os.environ.get("BAECHI_HUNT", "40"))
FROM = int(os.environ.get("BAECHI_HUNT_FROM", "0"))


@pytest.mark.default_cases(2)
@pytest.mark.parametrize("seed", range(FROM, FROM + COUNT))
def test_as_the_loop(seed: int) -> None:
    """The loss and the gradients; what cannot be kept apart is refused; what torch raises has the cure."""
    found = outcome(seed)
    if found != "right":
        pytest.skip(found)


@pytest.mark.parametrize("seed", [48343, 48432])
def test_a_buffer_that_was_assigned_anew_is_refused(seed: int) -> None:
    """The code named it, and then waited for its turn: it read what another microbatch had replaced."""
    assert "was assigned anew" in outcome(seed)


@pytest.mark.parametrize("seed", [3371, 4348])
def test_found(seed: int) -> None:
    """What an `autograd.Function` made over several stretches of code was sent before it was there."""
    assert outcome(seed, without=("later", "later_in_place", "statistics")) == "right"


def test_a_tensor_without_a_place_yet() -> None:
    """Made of numbers, it is written when its first reader gives it a place, not when the code makes it."""
    assert outcome(150102) == "right"
