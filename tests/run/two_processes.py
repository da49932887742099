"""A script run by two processes that meet: data parallel training on one machine."""

import os
import signal
import subprocess
import sys
from pathlib import Path

_FORKING = Path(__file__).with_name("forking.py")


def run_by_two(script: Path, meeting: Path, timeout_s: float = 240) -> list[str]:
    """What each of the processes printed; both have ended well, and none is left behind if one has not.

    Args:
        script: takes its rank, and the file where the processes meet.
        meeting: the file.
        timeout_s: for both.
    """
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    files = [meeting.with_name(f"printed {rank}") for rank in range(2)]
    parent = subprocess.Popen(
        [sys.executable, str(_FORKING), str(script), str(meeting), *map(str, files)],
        env=environment,
        start_new_session=True,  # so that both can be ended with it
    )
    try:
        code = parent.wait(timeout=timeout_s)
    finally:
        if parent.poll() is None:
            os.killpg(parent.pid, signal.SIGKILL)
            parent.wait()
    printed = [file.read_text() for file in files]
    assert code == 0, "\n".join(printed)
    return printed
