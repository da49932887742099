"""The tests on the test accelerator, in a few processes of their own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from accelerator import why_not

HERE = Path(__file__).parent / "accelerator"
SHARED = (
    "test_faults.py",
    "test_hunt.py",
    "test_machine.py",
    "test_machine_defects.py",
    "test_ops_apart.py",
    "test_points.py",
    "test_points_needed.py",
    "test_protocol.py",
    "test_split.py",
    "test_views.py",
)
"""Short ones, in one process: each process takes seconds to import what it needs."""

ALONE = sorted({path.name for path in HERE.glob("test_*.py")} - set(SHARED))


@pytest.mark.parametrize("files", [SHARED, *[(name,) for name in ALONE]], ids=" ".join)
def test_on_the_test_accelerator(files: tuple[str, ...]) -> None:
    """All of it passes, or is skipped with its reason."""
    if why_not():
        pytest.skip(why_not())
    paths = [str(HERE / file) for file in files]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *paths]
    environment = {**os.environ, "BAECHI_TOY": "1"}
    for name in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_ADDOPTS"):
        environment.pop(name, None)
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=HERE.parents[1])
    assert ran.returncode == 0, ran.stdout[-6000:] + ran.stderr[-2000:]
