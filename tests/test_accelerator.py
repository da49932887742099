"""The tests on the test accelerator, in a few processes of their own."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from accelerator import why_not

HERE = Path(__file__).parent / "accelerator"
FULL = {
    "alone": ("test_transparency.py",),  # which says what the device lacks, of these models only
    "long": ("test_drop_in.py", "test_devices.py", "test_dispatch.py"),
    "others": ("test_costs.py", "test_compiled.py"),  # costs first, while no memory is taken
}
"""By process of the full tier, its files; each process takes seconds to import what it needs."""

FILES = [path.name for path in sorted(HERE.glob("test_*.py"))]
FULL["others"] += tuple(file for file in FILES if not any(file in files for files in FULL.values()))


def run(marks: str, files: Sequence[str]) -> None:
    if why_not():
        pytest.skip(why_not())
    paths = [str(HERE / file) for file in files]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-m", marks, *paths]
    environment = {**os.environ, "BAECHI_TOY": "1"}
    for name in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_ADDOPTS"):
        environment.pop(name, None)
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=HERE.parents[1])
    assert ran.returncode == 0, ran.stdout[-6000:] + ran.stderr[-2000:]


def test_the_default_tier() -> None:
    """What has no mark: of each kind of test the quickest."""
    run("not full and not nightly", FILES)


@pytest.mark.full
@pytest.mark.timeout(1800)  # minutes, all together; each test of them has its own limit
@pytest.mark.parametrize("process", FULL)
def test_the_full_tier(process: str) -> None:
    """All else passes, or is skipped with its reason."""
    run("full and not nightly", FULL[process])


@pytest.mark.nightly
@pytest.mark.timeout(0)  # hours
@pytest.mark.parametrize("process", FULL)
def test_the_nightly_tier(process: str) -> None:
    """Every combination."""
    run("nightly", FULL[process])
