"""Processes that compute together by gloo, as torchrun would start them: started once, they do job after job.

test ── job: function, arguments ──▶ rank 0, rank 1, ...      each answers with what it returned, or raised

They are forks of two processes that have imported torch, which takes longer than most jobs. Neighbours are of
different ones, so sets are in another order there, as between hosts.
"""

import json
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[2]
_LENGTH, _MOST = 8, 1 << 16
_IMPORTED = (
    *("torch._dynamo.convert_frame", "torch._functorch.aot_autograd", "torch.distributed.checkpoint"),
    *("baechi.verbs.distribute", "baechi.run.ranks.call", "baechi.report", "run.ranks.checkpoint_jobs"),
)


class Process:
    """A fork.

    Args:
        parent: which process it is forked from.
        environment: what it has in addition.
    """

    def __init__(self, parent: int, environment: dict[str, str]) -> None:
        theirs, mine = os.pipe(), os.pipe()
        channel = _parent(parent)
        socket.send_fds(channel, [json.dumps(environment).encode()], [theirs[0], mine[1]])
        self.pid = int(channel.recv(_LENGTH))
        os.close(theirs[0])
        os.close(mine[1])
        self.stdin, self.stdout = os.fdopen(theirs[1], "wb"), os.fdopen(mine[0], "rb")

    def end(self) -> None:
        """Let it end; it is killed where it does not."""
        self.stdin.close()
        ended, _, _ = select.select([self.stdout], [], [], 20)
        if not ended:
            os.kill(self.pid, signal.SIGKILL)
        self.stdout.close()


@cache
def _parent(number: int) -> socket.socket:
    """The way to a process that forks; it ends with this one."""
    ours, theirs = socket.socketpair()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(TESTS), *sys.path])
    environment["PYTHONHASHSEED"] = str(number + 1)
    command = [sys.executable, "-m", "run.ranks.processes", str(theirs.fileno())]
    subprocess.Popen(command, env=environment, pass_fds=[theirs.fileno()], stdout=subprocess.DEVNULL)
    theirs.close()
    return ours


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
            where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "BAECHI_RANKS_LIMIT_S": limit_s}
            text = {name: str(value) for name, value in {**told, **where}.items()}
            self.processes.append(Process(rank % 2, text))

    def __call__(self, job: Callable[..., Any], *args: Any) -> list[Any]:
        """What each rank returned of a job; its error where it raised one."""
        self.begin(job, *args)
        return self.answers()

    def begin(self, job: Callable[..., Any], *args: Any) -> None:
        """Give all ranks a job."""
        text = pickle.dumps((job, args))
        for process in self.processes:
            process.stdin.write(len(text).to_bytes(_LENGTH, "big") + text)
            process.stdin.flush()

    def answers(self) -> list[Any]:
        """What each rank answers; None if it ended."""
        found = []
        for process in self.processes:
            head = process.stdout.read(_LENGTH)
            text = process.stdout.read(int.from_bytes(head, "big")) if head else None
            found.append(None if text is None else pickle.loads(text))
        return found

    def end(self) -> None:
        """End the processes."""
        for process in self.processes:
            process.end()


@contextmanager
def ranks(size: int, limit_s: float = 60) -> Iterator[Ranks]:
    """Processes while it lasts."""
    made = Ranks(size, limit_s)
    try:
        yield made
    finally:
        made.end()


def fork(channel: socket.socket) -> None:
    """Fork as often as it is asked for, until nobody can ask any more."""
    for name in _IMPORTED:
        import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # so that the system forgets those that ended
    while True:
        text, descriptors, _, _ = socket.recv_fds(channel, _MOST, 2)
        if not text:
            return
        pid = os.fork()
        if not pid:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            channel.close()
            os.environ.update(json.loads(text))
            work(*descriptors)
        for one in descriptors:
            os.close(one)
        channel.send(str(pid).encode())


def work(jobs_from: int, answers_to: int) -> None:
    """Do jobs until there are no more."""
    jobs, answers = os.fdopen(jobs_from, "rb"), os.fdopen(answers_to, "wb")
    os.dup2(2, 1)  # what jobs print goes to the standard error
    import torch

    torch.set_num_threads(1)
    while head := jobs.read(_LENGTH):
        job, args = pickle.loads(jobs.read(int.from_bytes(head, "big")))
        try:
            result = job(*args)
        except Exception as error:  # the test says which ones it wants
            result = error
        text = pickle.dumps(result)
        answers.write(len(text).to_bytes(_LENGTH, "big") + text)
        answers.flush()
    os._exit(0)  # a gloo thread that asks for the interpreter's lock while that ends aborts the process


if __name__ == "__main__":
    fork(socket.socket(fileno=int(sys.argv[1])))
