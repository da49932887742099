"""The tests on the test accelerator, in a few processes of their own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from accelerator import why_not

HERE = Path(__file__).parent / "accelerator"
PROCESSES: dict[str, tuple[str, ...]] = {
    "alone": ("test_transparency.py",),  # which says what the device lacks, of these models only
    "long": ("test_drop_in.py", "test_devices.py", "test_dispatch.py"),
    "others": ("test_costs.py", "test_compiled.py"),  # costs first, while no memory is taken
}
"""Each process takes seconds to import what it needs."""

_NAMED = {file for files in PROCESSES.values() for file in files}
PROCESSES["others"] += tuple(sorted({path.name for path in HERE.glob("test_*.py")} - _NAMED))


@pytest.mark.timeout(1800)  # minutes, all together; each test of them has its own limit
@pytest.mark.parametrize("process", PROCESSES)
def test_on_the_test_accelerator(process: str) -> None:
    """All of it passes, or is skipped with its reason."""
    if why_not():
        pytest.skip(why_not())
    paths = [str(HERE / file) for file in PROCESSES[process]]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *paths]
    environment = {**os.environ, "BAECHI_TOY": "1"}
    for name in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_ADDOPTS"):
        environment.pop(name, None)
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=HERE.parents[1])
    assert ran.returncode == 0, ran.stdout[-6000:] + ran.stderr[-2000:]
