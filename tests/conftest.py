"""What every test may count on, and which tests run.

A test is in one of three tiers; those of a tier run with those of the tiers before it:

    pytest                 the default tier: everything without a mark, in minutes
    pytest --tier full     and what is marked `full`, before a merge
    pytest --tier nightly  and what is marked `nightly`: all there is, for hours

Of a test that is marked `default_cases(n)` the first n cases are of the default tier, the others of the
full one. `-m full` and `-m nightly` choose what is so marked, alone. A test that is named by its node id
(`pytest tests/test_x.py::test_y`) runs whatever its tier. The whole suite runs by a worker a core, at
most four; what is named on the command line runs in one process, and so does all with `-n 0`.
"""

import gc
import os
from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings

os.environ["HF_HUB_OFFLINE"] = "1"  # models are built from configs: nothing is ever fetched
gc.set_threshold(10_000, 20, 20)  # else a twentieth of the suite's time; and what only it frees shows sooner
torch.set_num_threads(1)  # the models are tiny, the tests run side by side, and bits depend on it

# No chance (`--hypothesis-profile=default` takes it), and no clock.
settings.register_profile("same", derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("same")


TIERS = ("default", "full", "nightly")
LEFT_OUT = pytest.StashKey[int]()
"""How many tests of later tiers were left out."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--tier", choices=TIERS, help="which tests run: this tier's and those before it")


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist looks
def pytest_cmdline_main(config: pytest.Config) -> None:
    """The whole suite runs by a worker a core, unless `-n` says something else."""
    os.environ["BAECHI_TIER"] = tier(config)  # which decides how many examples there are (`matrix.py`)
    free = config.getoption("numprocesses", 0) is None and not config.getoption("usepdb")
    whole = config.args_source is not pytest.Config.ArgsSource.ARGS
    if free and whole and not hasattr(config, "workerinput"):  # which a worker has
        config.option.numprocesses = min(4, os.cpu_count() or 1)
        config.option.dist = "worksteal"  # a worker runs neighbours, which share what they build


def tier(config: pytest.Config) -> str:
    """The tier that runs: what `--tier` says, else the last that `-m` names."""
    marks = [tier for tier in TIERS[1:] if tier in config.getoption("markexpr").split()]
    return str(config.getoption("tier") or ["default", *marks][-1])


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses among these
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests of later tiers are left out. The longest begin first, so that no worker is alone at the end."""
    seen: Counter[Any] = Counter()
    for item in items:
        few, test = item.get_closest_marker("default_cases"), item.nodeid.partition("[")[0]
        seen[test] += 1
        if few is not None and seen[test] > few.args[0]:
            item.add_marker("full")
    if not any("::" in argument for argument in config.args):
        later = TIERS[TIERS.index(tier(config)) + 1 :]
        left = {item for item in items if any(map(item.get_closest_marker, later))}
        config.hook.pytest_deselected(items=list(left))
        config.stash[LEFT_OUT] = len(left)
        items[:] = [item for item in items if item not in left]
    items.sort(key=lambda item: "test_accelerator.py" not in item.nodeid)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if left := config.stash.get(LEFT_OUT, 0):
        terminalreporter.write_line(f"{left} tests of later tiers were left out: --tier runs them")
