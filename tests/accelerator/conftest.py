"""Tests on the test accelerator, in processes of their own: a device type, once there, changes torch."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from baechi.measure import launch

sys.path.insert(0, str(Path(__file__).parents[1]))  # also where these tests are the only ones

ASKED = "BAECHI_TOY"
"""Set where this folder is tested by itself; `tests/test_accelerator.py` does so, some files at a time."""

ON_TOY = os.environ.get("BAECHI_DEVICE", "toy") == "toy"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Among other tests these are left out, unless they are the ones that were asked for."""
    named = any("accelerator" in Path(argument.partition("::")[0]).parts for argument in config.args)
    is_test = collection_path.name.startswith("test_")
    return True if is_test and not named and not os.environ.get(ASKED) else None


@pytest.fixture(scope="session", autouse=True)
def _loaded(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The device type is there before the first backward, in which autograd counts devices. What is
    measured of devices is kept for these tests only."""
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
    from accelerator import ToyMachine, why_not

    if not ON_TOY:
        return  # `test_devices.py` runs on a real one
    if why_not():
        pytest.skip(why_not())
    ToyMachine.get()
    launch._KERNELS = 20  # all launches take the same by its clock, and each of them takes real time


@pytest.fixture
def toy() -> Iterator[object]:
    """The machine, as new; late, by an order of its own for each test. Whatever it finds fails the test."""
    from accelerator import ToyMachine

    if not ON_TOY:
        pytest.skip("needs the test accelerator, and BAECHI_DEVICE asks for another")
    machine = ToyMachine.get()
    machine.restart(seed=1, late=True)
    yield machine
    found = machine.faults()
    machine.restart(late=False)
    assert not found, "\n".join(found[:5])
