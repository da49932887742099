"""The README's two commands: what they are, and that the first does all on a fresh machine."""

import os
import re
import shutil
import subprocess
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LEFT_OUT = shutil.ignore_patterns(".git", "__pycache__", ".venv", "*.egg-info", "build", "dist")


def commands() -> list[str]:
    """The lines of the README that install and then do something."""
    return re.findall(r"^    (pip install .* && .*)$", (ROOT / "README.md").read_text(), re.MULTILINE)


def test_two_commands_do_all() -> None:
    """One installs and runs the main job, one installs and runs the tests; the page stays short."""
    assert commands() == [
        'pip install ".[demo]" && python -m baechi demo',
        'pip install -e ".[dev]" && pytest',
    ]
    assert len((ROOT / "README.md").read_text().splitlines()) <= 90


@pytest.mark.full
def test_the_first_command_on_a_fresh_machine(tmp_path: Path) -> None:
    """A copy of the files, an empty environment and nothing compiled: the demo trains the same losses."""
    clone, environment = tmp_path / "clone", tmp_path / "environment"
    shutil.copytree(ROOT, clone, ignore=LEFT_OUT)
    venv.create(environment, with_pip=True)
    own = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV"))}
    own |= {"PATH": f"{environment / 'bin'}:{os.environ['PATH']}", "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(
        commands()[0],
        shell=True,
        cwd=clone,
        env=own,
        capture_output=True,
        text=True,
        timeout=570,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "The same losses" in done.stdout
