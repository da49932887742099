"""The garbage collector rests while a placer runs, and is afterwards as it was."""

import gc

import pytest

from baechi.gc_pause import only_new_ones, uncollected


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


def test_new_ones() -> None:
    """What was there is set aside meanwhile; a cycle that is made inside is found there."""
    with only_new_ones():
        frozen = gc.get_freeze_count()
        cycle: list[object] = []
        cycle.append(cycle)
        del cycle
        assert frozen and gc.collect() > 0
        with only_new_ones():
            assert 0 < gc.get_freeze_count() <= frozen  # nothing new is frozen; a frozen object may die
        assert 0 < gc.get_freeze_count() <= frozen
    assert gc.get_freeze_count() == 0
