"""Long runs over ranks: they go on after a restart, and take no more memory from step to step."""

import json
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
_MOST_BYTES = 4 << 20


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
def test_memory_is_flat(tmp_path: Path) -> None:
    """Over 500 steps; a list of what was done in each would show."""
    plan = tmp_path / "pipeline.json"
    plan.write_text(pipeline_of("tied", 2, 2, "1f1b"))
    for rank, ended in enumerate(run_script(2, [MEMORY, plan, tmp_path], 500.0)):
        assert ended.code == 0, ended.said
        begin, end = map(int, (tmp_path / str(rank)).read_text().split())
        print(f"rank {rank}: {begin / 2**20:.1f} MiB after 100 steps, {end / 2**20:.1f} MiB after 600")
        assert end - begin < _MOST_BYTES
