"""Worker processes: what each fault becomes, that the next call works, and that none is left.

Two workers are spawned once; those that die are spawned again by the next call.
"""

import multiprocessing
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from dispatch.chunks_of import assert_close
from dispatch.workers import odd_model
from dispatch.workers.odd_model import Odd

import baechi
from baechi import RoundRobin, WorkerError

pytestmark = [pytest.mark.timeout(60)]

X = torch.zeros(8, 4)


class Watched(RoundRobin):
    """Calls a function when the caller has seen that a chunk is done."""

    def __init__(self) -> None:
        super().__init__(2, batch_size=2)
        self.then: Any = None

    def completed(self, target: str, items: int, **kwargs: Any) -> None:
        super().completed(target, items, **kwargs)
        then, self.then = self.then, None
        if then is not None:
            then()


@pytest.fixture(scope="module")
def pool() -> Iterator[baechi.Dispatched]:
    torch.manual_seed(0)
    out = ("cat", 0)
    with baechi.dispatch(Odd().eval(), Watched(), workers="process", timeout=2.0, out=out) as dispatched:
        yield dispatched
    assert not multiprocessing.active_children()


@pytest.fixture
def pipe(tmp_path: Path) -> str:
    os.mkfifo(tmp_path / "pipe")
    return str(tmp_path / "pipe")


def where(what: int, chunk: int = 1) -> torch.Tensor:
    """An input of four chunks of which one does something."""
    x = X.clone()
    x[2 * chunk, 0] = what
    return x


def works(pool: baechi.Dispatched) -> None:
    with torch.no_grad():
        assert_close(pool(X), pool.model(X))


def test_weights_are_shared_and_follow_the_master(pool: baechi.Dispatched) -> None:
    works(pool)
    model: Any = pool.model
    with torch.no_grad():
        model.layer.bias.add_(1)
        works(pool)
        model.layer.weight.data.fill_(0.5)
        pool.sync()
        works(pool)
        model.layer = torch.nn.Linear(4, 4)
        works(pool)
    with pytest.raises(baechi.FatalError, match="gradients do not come back from worker processes"):
        pool(X[:2])


def test_an_error_keeps_its_type_and_says_where(pool: baechi.Dispatched) -> None:
    with torch.no_grad():
        with pytest.raises(odd_model.TwoArguments, match="twoarguments") as raised:
            pool(where(odd_model.RAISES))
        assert raised.value.left == "two"
        notes = "\n".join(raised.value.__notes__)
        assert "in layer (root) (Odd) on cpu" in notes
        assert "in chunk 1 (rows 2 to 3 of 8) on worker 1 on cpu" in notes
        assert "odd_model.py" in notes  # the worker's traceback
        with pytest.raises(WorkerError, match=r"Lambda in worker 1.* cannot be sent"):
            pool(where(odd_model.TWO_ARGUMENTS))
        with pytest.raises(Exception, match="pickle"):
            pool(where(odd_model.UNSENDABLE))
        with pytest.raises(WorkerError, match="was interrupted"):
            pool(where(odd_model.INTERRUPTED))
    works(pool)


def test_dead_workers_are_told_by_their_exit_codes(pool: baechi.Dispatched) -> None:
    chunks = torch.cat([where(odd_model.EXITS, 0)[:2], where(odd_model.KILLED, 0)[:2]])
    with torch.no_grad(), pytest.raises(baechi.AggregateError, match="2 of 2 chunks failed") as raised:
        pool(chunks)
    assert [getattr(error, "exit_code", None) for error in raised.value.exceptions] == [9, -signal.SIGKILL]
    assert "worker 0 on cpu ended with exit code 9" in str(raised.value.exceptions[0])
    works(pool)


def test_a_chunk_has_its_time_and_a_worker_without_one_may_end(pool: baechi.Dispatched, pipe: str) -> None:
    """Chunk 0 waits until chunk 1 is done and its worker is gone: that worker is no dead one."""
    scheduler: Any = pool.scheduler

    def end_the_other() -> None:
        other = [child for child in multiprocessing.active_children() if child.name.startswith("worker 1")]
        os.kill(other[0].pid or 0, signal.SIGINT)
        other[0].join()
        with open(pipe, "wb"):
            pass

    scheduler.then = end_the_other
    with torch.no_grad():
        found = pool(where(odd_model.WAITS, 0)[:4], pipe)
        assert_close(found[2:], pool.model(X[2:4]))
        with pytest.raises(WorkerError, match=r"worker 0 on cpu took longer than the timeout of 2\.0 s"):
            pool(where(odd_model.HANGS, 0)[:2], pipe)
    works(pool)


def test_ctrl_c_ends_all_workers(pool: baechi.Dispatched, pipe: str) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    scheduler: Any = pool.scheduler
    scheduler.then = interrupt
    with torch.no_grad(), pytest.raises(KeyboardInterrupt):
        pool(where(odd_model.HANGS, 0), pipe)
    assert not multiprocessing.active_children()
    works(pool)


def test_a_factory_makes_the_model_in_each_worker_and_nothing_is_left() -> None:
    before, children = _shared_memory(), set(multiprocessing.active_children())
    torch.manual_seed(5)
    with (
        torch.no_grad(),
        baechi.dispatch(odd_model.make, RoundRobin(1), workers="process", out=("cat", 0)) as pool,
    ):
        found = pool(X)
        assert_close(found, pool.model(X))  # made here, it has the same weights
    with torch.no_grad(), baechi.dispatch(odd_model.broken, RoundRobin(1), workers="process") as pool:
        with pytest.raises(RuntimeError, match="no checkpoint"):
            pool(X)
    assert set(multiprocessing.active_children()) <= children
    assert _shared_memory() <= before


def _shared_memory() -> set[str]:
    return set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()


def test_what_cannot_be_sent_is_refused_before_a_process_is_started() -> None:
    class Local(torch.nn.Identity):
        """Not importable by name."""

    before = set(multiprocessing.active_children())
    for model in (Local(), lambda: Local()):
        with pytest.raises(baechi.FatalError, match="cannot be sent to a worker process"):
            baechi.dispatch(model, RoundRobin(2), workers="process")(X)
    assert set(multiprocessing.active_children()) <= before
