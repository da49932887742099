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


@pytest.mark.parametrize("seed", range(FROM, FROM + COUNT))
def test_as_the_loop(seed: int) -> None:
    """The loss and the gradients; what cannot be kept apart is refused; what torch raises has the cure."""
    found = outcome(seed)
    if found != "right":
        pytest.skip(found)


@pytest.mark.parametrize("seed", [3371, 4348])
def test_found(seed: int) -> None:
    """What an `autograd.Function` made over several stretches of code was sent before it was there."""
    assert outcome(seed, without=("later", "later_in_place")) == "right"
