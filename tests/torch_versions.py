"""Baechi with several versions of torch: install, import, and run a quick suite, one version after the other.

    python tests/torch_versions.py 2.9 2.11 2.13

Each version gets a virtual environment of its own, which is removed afterwards (`--keep DIR` keeps them, and
takes them again). Torch comes from its index of CPU builds where that can be reached, else from the default
index, whose builds for Linux run on a machine without a GPU, too. A version fails where its tests fail that
pass with the version that `pyproject.toml` pins.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import venv
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
CPU_BUILDS = "https://download.pytorch.org/whl/cpu"
TOOLS = ("pytest", "pytest-timeout", "pytest-xdist", "hypothesis", "transformers>=5.0")
SUITE = (
    "tests/torchlib",
    "tests/run/guards",
    "tests/run/launch",
    "tests/run/drop_in/test_hooks.py",
    "tests/run/drop_in/test_derivatives.py",
    "tests/capture/watch",
    "tests/backend/virtual/test_emulation.py",
    "tests/backend/virtual/test_identity.py",
)
"""Tests of what rests on torch's inside; about two minutes."""

ASIDE = "not is_needed"
"""That each protection is needed is said of the torch that is pinned: in another one two may do the same."""

ASK = """
import importlib, pkgutil, torch
import baechi
from baechi.torchlib import private
for module in pkgutil.iter_modules(private.__path__):
    importlib.import_module(f"{private.__name__}.{module.name}")
from baechi.torchlib.private.lookup import missing_names
print(torch.__version__, *missing_names())
"""


@dataclass
class Tried:
    """What came of one version.

    Args:
        asked: the version that was asked for, such as `2.9`.
        torch: the version that was installed; what went wrong, if none was.
        missing: private names that it lacks.
        tests: pytest's last line.
        failed: the tests that failed.
        seconds: how long the tests took.
    """

    asked: str
    torch: str
    missing: tuple[str, ...] = ()
    tests: str = "not run"
    failed: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def well(self) -> bool:
        """Whether everything went well."""
        return "passed" in self.tests and not self.failed


def tried(version: str, folder: Path) -> Tried:
    """Try a version of torch.

    Args:
        version: such as `2.9`.
        folder: where its environment is, or will be.
    """
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    pip = (str(python), "-m", "pip", "install", "--quiet")
    builds = ("--extra-index-url", CPU_BUILDS) if _reachable(CPU_BUILDS) else ()
    for wanted in ((*builds, f"torch=={version}.*"), (str(ROOT), f"torch=={version}.*", *TOOLS)):
        done = _run(*pip, *wanted)
        if done.returncode:
            return Tried(version, _last_line(done.stderr))
    done = _run(str(python), "-c", ASK, cwd=folder)  # the installed one, not the working copy
    if done.returncode:
        return Tried(version, f"import baechi: {_last_line(done.stderr)}")
    name, *missing = done.stdout.split()
    begun_s = time.perf_counter()
    pytest = (str(python), "-m", "pytest", "-n", "0", "-p", "no:cacheprovider", "--tb=no", "-rfE")
    done = _run(*pytest, "-k", ASIDE, *SUITE)
    lines = done.stdout.splitlines()
    failed = tuple(re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", done.stdout, flags=re.MULTILINE))
    last = lines[-1].strip("= ") if lines else _last_line(done.stderr)
    return Tried(version, name, tuple(missing), last, failed, time.perf_counter() - begun_s)


def table(results: list[Tried]) -> str:
    """The results as a Markdown table.

    Args:
        results: one for each version.
    """
    lines = ["| asked for | installed | private names missing | tests | seconds |", "|---|---|---|---|--:|"]
    for result in results:
        missing = ", ".join(result.missing) or "none"
        lines.append(
            f"| {result.asked} | {result.torch} | {missing} | {result.tests} | {result.seconds:.0f} |"
        )
    return "\n".join(lines)


def _run(*command: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no reason given"])[-1]


def _reachable(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/torch/", timeout=10):
            return True
    except (urllib.error.URLError, TimeoutError):
        return False


def main() -> int:
    """Try the versions that are named on the command line; returns 1 if one of them failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("versions", nargs="+", help="such as 2.9 2.11 2.13")
    parser.add_argument("--keep", type=Path, help="where environments are kept from run to run")
    options = parser.parse_args()
    results = []
    for version in options.versions:
        with tempfile.TemporaryDirectory() as scratch:
            results.append(tried(version, (options.keep or Path(scratch)) / f"torch-{version}"))
        print(f"{version}: {results[-1].tests}", *results[-1].failed, sep="\n  ", file=sys.stderr)
    print(table(results))
    return int(not all(result.well for result in results))


if __name__ == "__main__":
    sys.exit(main())
