"""Long runs over ranks: they go on after a restart, and take no more memory from step to step."""

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from run.ranks.jobs import pipeline_of
from run.ranks.scripts import environment, run_script

HERE = Path(__file__).parent
ELASTIC, MEMORY = HERE / "elastic.py", HERE / "memory.py"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
_MOST_BYTES = 1 << 20


def losses(folder: Path) -> list[list[float]]:
    return [json.loads(line) for line in (folder / "losses").read_text().splitlines()]


def uninterrupted(folder: Path) -> list[float]:
    """The losses of one process."""
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, str(ELASTIC), str(folder), "none"],
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return [loss for _, loss, _ in losses(folder)]


def elastic(*arguments: object) -> tuple[list[str], dict[str, str]]:
    """What torchrun is called with; it starts ranks again once."""
    where = ["--rdzv-backend", "c10d", "--max-restarts", "1"]
    return [*TORCHRUN, *where, *map(str, arguments)], {
        **environment(),
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",  # else the second attempt finds addresses of the first one
    }


def goes_on(alone: Sequence[float], found: Sequence[Sequence[float]], sizes: Sequence[int]) -> None:
    """Steps before the fault ran on one number of ranks, those from it on another."""
    steps = [int(step) for step, _, _ in found]
    assert steps == list(range(1, 9))
    assert [loss for _, loss, _ in found] == list(alone)
    assert [int(size) for _, _, size in found] == [sizes[step >= 5] for step in steps]


@pytest.mark.full
def test_a_killed_rank(tmp_path: Path) -> None:
    """In step 5; after the restart losses are those of one process that nothing interrupted."""
    alone = uninterrupted(tmp_path / "alone")
    folder = tmp_path / "ranks"
    folder.mkdir()
    command, where = elastic("--rdzv-endpoint", "localhost:0", "--nproc-per-node", 2, ELASTIC, folder, 1)
    done = subprocess.run(command, env=where, stderr=subprocess.PIPE, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    goes_on(alone, losses(folder), (2, 2))


@pytest.mark.nightly
@pytest.mark.parametrize("then", [1, 3])
def test_another_number_of_ranks(tmp_path: Path, then: int) -> None:
    """Two ranks are saved, and one is killed in step 5; another torchrun goes on with one, or three."""
    alone = uninterrupted(tmp_path / "alone")
    folder = tmp_path / "ranks"
    folder.mkdir()
    for size, killed in ((2, "1"), (then, "none")):
        given = map(str, (size, ELASTIC, folder, killed))
        command = [*TORCHRUN, "--standalone", "--nproc-per-node", *given]
        done = subprocess.run(command, env=environment(), stderr=subprocess.PIPE, text=True, timeout=300)
        assert (done.returncode == 0) == (killed == "none"), done.stderr
    goes_on(alone, losses(folder), (2, then))


@pytest.mark.nightly
def test_a_host_that_is_lost(tmp_path: Path) -> None:
    """`--nnodes 1:2`: the torchrun of the second host is killed with its rank, and the first one goes on."""
    alone = uninterrupted(tmp_path / "alone")
    folder = tmp_path / "ranks"
    folder.mkdir()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        where = f"localhost:{probe.getsockname()[1]}"
    running = []
    for is_host in (1, 0):  # the one that has the rendezvous comes first, and is rank 0
        options = ["--nnodes", "1:2", "--nproc-per-node", 1, "--rdzv-endpoint", where, "--rdzv-id", "lost"]
        options += ["--rdzv-conf", f"is_host={is_host},last_call_timeout=10"]
        command, variables = elastic(*options, ELASTIC, folder, 1, "host")
        running.append(subprocess.Popen(command, env=variables, stderr=subprocess.PIPE, text=True))
    said = [one.communicate(timeout=400)[1] for one in running]
    assert [one.returncode for one in running] == [0, -signal.SIGKILL], said
    goes_on(alone, losses(folder), (2, 1))


@pytest.mark.nightly
def test_memory_is_flat(tmp_path: Path) -> None:
    """Over 500 steps, once torch's own list is full; 2 kB a step would show."""
    plan = tmp_path / "pipeline.json"
    plan.write_text(pipeline_of("tied", 2, 2, "1f1b"))
    for rank, ended in enumerate(run_script(2, [MEMORY, plan, tmp_path], 500.0)):
        assert ended.code == 0, ended.said
        begin, end = map(int, (tmp_path / str(rank)).read_text().split())
        print(f"rank {rank}: {begin / 2**20:.1f} MiB after 600 steps, {end / 2**20:.1f} MiB after 1100")
        assert end - begin < _MOST_BYTES
