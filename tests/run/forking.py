"""Becomes two processes that run a script, once what takes long is imported: `script meeting file file`."""

import os
import runpy
import signal
import sys
from typing import NoReturn

import torch._dynamo  # noqa: F401  # takes as long as torch itself, and each capture needs it

import baechi  # noqa: F401


def run(script: str, rank: int, meeting: str, printed: str) -> NoReturn:
    """Run the script as one of the two processes, and end; what it prints goes to a file."""
    with open(printed, "w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.argv = [script, str(rank), meeting]
    sys.path.insert(0, os.path.dirname(script))
    runpy.run_path(script, run_name="__main__")
    sys.stdout.flush()
    os._exit(0)  # at the interpreter's end a group's threads would be joined under its lock


def main(script: str, meeting: str, files: list[str]) -> int:
    """How many of the processes have failed; where one has, the other does not wait for it."""
    workers = []
    for rank, printed in enumerate(files):
        worker = os.fork()
        if not worker:
            run(script, rank, meeting, printed)
        workers.append(worker)
    failed, waiting = 0, set(workers)
    while waiting:
        ended, status = os.wait()
        waiting.discard(ended)
        failed += status != 0
        if status:
            for worker in waiting:
                os.kill(worker, signal.SIGKILL)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
