"""What a layer holds: whether its code is known to leave that as it was found."""

import pytest
from run.steady.test_reads import Asks, AsksInside, hooked
from torch import nn

from baechi.run.steady.held import held_by


@pytest.mark.parametrize(
    ("layer", "keeps"),
    [
        (nn.Linear(4, 4), True),
        (nn.TransformerEncoderLayer(8, 2, 16), True),
        (nn.utils.spectral_norm(nn.Linear(4, 4)), False),  # a hook that sets the weight at each call
        (hooked(), False),
        (Asks(4, 4), False),
        (AsksInside(), False),
    ],
    ids=["linear", "several", "sets", "hooked", "own", "own-inside"],
)
def test_keeps_as_found(layer: nn.Module, keeps: bool) -> None:
    """A hook may set what torch's own code only reads."""
    held = held_by(layer)
    assert (held is not None and held.keeps_as_found) is keeps
