"""A script run by two processes that meet: data parallel training on one machine."""

import os
import subprocess
import sys
from pathlib import Path


def run_by_two(script: Path, meeting: Path, timeout_s: float = 240) -> list[str]:
    """What each of the processes printed; both have ended well, and none is left behind if one has not.

    Args:
        script: takes its rank, and the file where the processes meet.
        meeting: the file.
        timeout_s: for each.
    """
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    workers = [
        subprocess.Popen(
            [sys.executable, str(script), str(rank), str(meeting)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    found = []
    try:
        for worker in workers:
            printed, _ = worker.communicate(timeout=timeout_s)
            assert worker.returncode == 0, printed
            found.append(printed)
    finally:
        for worker in workers:
            worker.kill()
    return found
