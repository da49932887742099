"""Real architectures in microbatches compute what a loop over the parts does, in every order."""

import pytest
from architectures import HELD_IN, OTHERS, OWN, loss_of
from run.pipeline.by_loop import WithLoss, assert_as_loop, batch_of

pytestmark = pytest.mark.default_cases(2)

ORDERS = ("auto", "gpipe", "1f1b", "interleaved")
NAMES = (
    "torch_transformer",  # layers called twice, a stack whose functional ops are not seen
    "in_place_views",  # writes across stages, through views
    "recurrent_stack",
    "recurrent_gemma",  # keeps its state in attributes
    "gpt2",
    "t5",
    "clip",
    "resnet",
)
BY_NAME = {architecture.name: architecture for architecture in (*OWN, *HELD_IN, *OTHERS)}


@pytest.mark.default_cases(1)
@pytest.mark.parametrize("number", range(len(NAMES)), ids=NAMES)
def test_as_the_loop(number: int) -> None:
    """Random placements on two to four devices; rows that do not divide; each order twice."""
    architecture = BY_NAME[NAMES[number]]
    model = WithLoss(architecture.build(), loss_of).train().double()
    inputs = batch_of(architecture.inputs(), 5)
    assert_as_loop(
        model,
        inputs,
        2 + number % 2,
        devices=2 + number % 3,
        placer=f"random:{number}",
        order=ORDERS[number % len(ORDERS)],
    )
