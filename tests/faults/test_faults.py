"""The full tier finds every fault; thirty of the faults are found by the default tier."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from faults.declared import FAULTS, Fault
from faults.plugin import with_fault
from faults.runner import caught


def test_what_is_declared() -> None:
    """What a fault replaces is there, once; what stands there then can be compiled."""
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 40
    for fault in FAULTS:
        spec = find_spec(fault.module)
        assert spec is not None and spec.origin is not None
        compile(with_fault(Path(spec.origin).read_text(), fault), spec.origin, "exec")
        assert fault.default or fault.full


def test_the_default_tier_finds_thirty() -> None:
    """As far as `test_it_is_found` proves what is declared."""
    assert sum(bool(fault.default) for fault in FAULTS) >= 30


@pytest.mark.full
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.replace(" ", "-"))
def test_it_is_found(fault: Fault, tmp_path: Path) -> None:
    """The tests that are declared for it, which pass without it, fail."""
    assert caught(fault, tmp_path / "printed.txt")
