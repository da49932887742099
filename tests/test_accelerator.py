"""The tests on the test accelerator, each file in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from accelerator import why_not

HERE = Path(__file__).parent / "accelerator"


@pytest.mark.parametrize("file", sorted(path.name for path in HERE.glob("test_*.py")))
def test_on_the_test_accelerator(file: str) -> None:
    """All of it passes, or is skipped with its reason."""
    if why_not():
        pytest.skip(why_not())
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE / file)]
    environment = {**os.environ, "BAECHI_TOY": "1"}
    for name in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_ADDOPTS"):
        environment.pop(name, None)
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=HERE.parents[1])
    assert ran.returncode == 0, ran.stdout[-6000:] + ran.stderr[-2000:]
