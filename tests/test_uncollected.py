"""The garbage collector rests while a placer runs, and is afterwards as it was."""

import gc

import pytest

from baechi.uncollected import uncollected


@uncollected
def asked(fails: bool = False) -> bool:
    """Whether it is on."""
    if fails:
        raise ValueError("on purpose")
    return gc.isenabled()


def test_it_rests() -> None:
    """Off inside, on again afterwards, whatever happens; who has turned it off keeps it off."""
    assert gc.isenabled() and not asked() and gc.isenabled()
    with pytest.raises(ValueError, match="on purpose"):
        asked(fails=True)
    assert gc.isenabled()
    gc.disable()
    try:
        assert not asked() and not gc.isenabled()
    finally:
        gc.enable()
