"""Two network namespaces as two hosts: the same losses as in one process."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FIRST = "10.77.0.1"


def ip(*words: str) -> bool:
    return subprocess.run(["ip", *words], capture_output=True, check=False).returncode == 0


@contextmanager
def hosts() -> Iterator[list[str]]:
    """Two namespaces with a cable between them; skipped where they cannot be made."""
    names = [f"baechi{os.getpid()}-{number}" for number in range(2)]
    if shutil.which("ip") is None or not ip("netns", "add", names[0]):
        pytest.skip("network namespaces need root, and `ip`")
    try:
        made = ip("netns", "add", names[1])
        made &= ip("-n", names[0], "link", "add", "end0", "type", "veth", "peer", "end1", "netns", names[1])
        for number, name in enumerate(names):
            made &= ip("-n", name, "addr", "add", f"10.77.0.{number + 1}/24", "dev", f"end{number}")
            made &= ip("-n", name, "link", "set", f"end{number}", "up") and ip(
                "-n", name, "link", "set", "lo", "up"
            )
        if not made:
            pytest.skip("network namespaces cannot be connected here")
        yield names
    finally:
        for name in names:
            ip("netns", "del", name)


@pytest.mark.full
def test_two_hosts(tmp_path: Path) -> None:
    example = ROOT / "examples" / "two_processes.py"
    script = tmp_path / example.name  # it draws its picture beside it
    shutil.copy(example, script)
    with hosts() as names:
        running = []
        for number, name in enumerate(names):
            options = ["--nnodes", "2", "--node-rank", str(number), "--nproc-per-node", "1"]
            options += ["--master-addr", FIRST, "--master-port", "29631"]
            command = ["ip", "netns", "exec", name, sys.executable, "-m", "torch.distributed.run", *options]
            where = {**os.environ, "GLOO_SOCKET_IFNAME": f"end{number}", "PYTHONPATH": str(ROOT)}
            running.append(
                subprocess.Popen([*command, str(script)], env=where, stdout=subprocess.PIPE, text=True)
            )
        printed = [one.communicate(timeout=250)[0] for one in running]
    assert [one.returncode for one in running] == [0, 0]
    assert printed[0].startswith(example.with_suffix(".out").read_text())
    assert printed[1] == ""
