"""Runs the tests that must find a fault, in a process of their own."""

import multiprocessing
import os
import sys
from pathlib import Path

import pytest

from faults.declared import Fault

TESTS = Path(__file__).parents[1]
IMPORTED = ("torch", "torch._dynamo", "transformers.modeling_utils", "hypothesis", "numba", "_pytest.main")
"""What every process needs and no fault is in: imported once, in the process from which these are forked."""

DEFAULT = "not full and not nightly"


def caught(fault: Fault, out: Path) -> str:
    """Run the tests that must find a fault, until one does.

    Args:
        fault: which one.
        out: a file for what they print.

    Returns:
        The test that failed; empty if all pass.

    Raises:
        RuntimeError: they could not run.
    """
    forked = multiprocessing.get_context("forkserver")
    forked.set_forkserver_preload(list(IMPORTED))
    process = forked.Process(target=_run, args=(fault, str(out)))
    process.start()
    process.join()
    printed = out.read_text()
    if process.exitcode not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise RuntimeError(
            f"the tests of {fault.name!r} did not run ({process.exitcode}):\n{printed[-4000:]}"
        )
    failed = [line.split()[1] for line in printed.splitlines() if line.startswith("FAILED")]
    return failed[0] if process.exitcode else ""


def _run(fault: Fault, out: str) -> None:
    """In the new process: pytest, with a plugin that puts the fault into the source."""
    descriptor = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    for name in [name for name in os.environ if name.startswith("PYTEST_")]:
        del os.environ[name]
    os.environ["BAECHI_FAULT"] = fault.name
    options = ["-x", "-n0", "-p", "faults.plugin", "-p", "no:cacheprovider", "--timeout=120"]
    marks = DEFAULT if fault.default else "not nightly"
    tests = [str(TESTS / test) for test in fault.default or fault.full]
    code = pytest.main([f"--rootdir={TESTS.parent}", *options, "-m", marks, *tests])
    sys.stdout.flush()
    os._exit(int(code))
