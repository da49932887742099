"""Types and style: the same commands that a developer runs, so that one command checks all."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def run(*command: str) -> None:
    line = [sys.executable, "-m", *command]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_types() -> None:
    """`mypy --strict` finds nothing."""
    run("mypy", "--strict", "baechi")


def test_style() -> None:
    """`ruff check` finds nothing."""
    run("ruff", "check", ".")
