"""Scripts that ranks run, as torchrun would start them, and how they ended."""

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

FAULTY = Path(__file__).with_name("faulty.py")
MOST_S = 120.0
TESTS = Path(__file__).parents[2]


@dataclass(frozen=True)
class Ended:
    """How a rank ended.

    Args:
        code: its exit code; negative: the signal.
        said: its standard error.
        at_s: when.
    """

    code: int
    said: str
    at_s: float


def environment(limit_s: float | None = None) -> dict[str, str]:
    """The variables of scripts that import from tests."""
    more = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}
    if limit_s is not None:
        more["BAECHI_RANKS_LIMIT_S"] = str(limit_s)
    return {**os.environ, **more}


def run_script(size: int, arguments: Sequence[object], limit_s: float) -> list[Ended]:
    """Run a script on some ranks; those that do not end are killed, and said to be -9."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    found: dict[int, Ended] = {}

    def run(rank: int) -> None:
        told = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
        where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        text = {name: str(value) for name, value in {**told, **where}.items()}
        command = [sys.executable, *map(str, arguments)]
        process = subprocess.Popen(
            command, env={**environment(limit_s), **text}, stderr=subprocess.PIPE, text=True
        )
        try:
            _, said = process.communicate(timeout=MOST_S)
        except subprocess.TimeoutExpired:
            process.kill()
            _, said = process.communicate()
            said += "it did not end"
        lines = [line for line in said.splitlines() if not line.startswith("frame #")]  # of torch's own code
        found[rank] = Ended(process.returncode, "\n".join(lines), time.time())

    threads = [Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[rank] for rank in range(size)]


def after_s(ended: Sequence[Ended]) -> list[float]:
    """By rank, how long after the fault it ended."""
    return [each.at_s - _fault_s(ended) for each in ended]


def raised_after_s(ended: Sequence[Ended], rank: int) -> float:
    """How long after the fault a rank's script raised."""
    (raised_s,) = re.findall(r"^raised at (.*)$", ended[rank].said, re.M)
    return float(raised_s) - _fault_s(ended)


def _fault_s(ended: Sequence[Ended]) -> float:
    (found,) = [float(one) for each in ended for one in re.findall(r"^fault at (.*)$", each.said, re.M)]
    return found
