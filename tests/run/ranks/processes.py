"""Processes that compute together by gloo, as torchrun would start them: started once, they do job after job.

test ── job: function, arguments ──▶ rank 0, rank 1, ...      each answers with what it returned, or raised
"""

import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[2]
_LENGTH = 8


class Ranks:
    """Processes that wait for jobs.

    Args:
        size: how many.
        limit_s: how long one waits for another, in seconds.
    """

    def __init__(self, size: int, limit_s: float = 60) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.processes = []
        for rank in range(size):
            told = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
            where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": 1}
            more = {"BAECHI_RANKS_LIMIT_S": limit_s, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}
            text = {name: str(value) for name, value in {**told, **where, **more}.items()}
            command = [sys.executable, "-m", "run.ranks.processes"]
            self.processes.append(
                subprocess.Popen(
                    command, env={**os.environ, **text}, stdin=subprocess.PIPE, stdout=subprocess.PIPE
                )
            )

    def __call__(self, job: Callable[..., Any], *args: Any) -> list[Any]:
        """What each rank returned of a job; its error where it raised one."""
        self.begin(job, *args)
        return self.answers()

    def begin(self, job: Callable[..., Any], *args: Any) -> None:
        """Give all ranks a job."""
        text = pickle.dumps((job, args))
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write(len(text).to_bytes(_LENGTH, "big") + text)
            process.stdin.flush()

    def answers(self) -> list[Any]:
        """What each rank answers; None if it ended."""
        found = []
        for process in self.processes:
            assert process.stdout is not None
            head = process.stdout.read(_LENGTH)
            text = process.stdout.read(int.from_bytes(head, "big")) if head else None
            found.append(None if text is None else pickle.loads(text))
        return found

    def end(self) -> None:
        """End the processes."""
        for process in self.processes:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.close()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()


@contextmanager
def ranks(size: int, limit_s: float = 60) -> Iterator[Ranks]:
    """Processes while it lasts."""
    made = Ranks(size, limit_s)
    try:
        yield made
    finally:
        made.end()


def work() -> None:
    """Do jobs until there are no more."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what jobs print goes to the standard error
    import torch

    torch.set_num_threads(1)
    while head := sys.stdin.buffer.read(_LENGTH):
        job, args = pickle.loads(sys.stdin.buffer.read(int.from_bytes(head, "big")))
        try:
            result = job(*args)
        except Exception as error:  # the test says which ones it wants
            result = error
        text = pickle.dumps(result)
        answers.write(len(text).to_bytes(_LENGTH, "big") + text)
        answers.flush()
    os._exit(0)  # a gloo thread that asks for the interpreter's lock while that ends aborts the process


if __name__ == "__main__":
    work()
