"""A file is the old one or the new one, whole, whatever happens while it is saved."""

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from place.graphs import chain, cluster_of

from baechi.records import Plan, Timeline, files
from baechi.records.abstract import AbstractRecord
from baechi.records.pipeline import Pipeline
from baechi.simulate.pipeline import ordered

GRAPH = chain(200)
PLAN = Plan(GRAPH, cluster_of(9999, 9999), dict.fromkeys(GRAPH.placed(), "d0"))
RECORDS: list[AbstractRecord] = [GRAPH, PLAN.cluster, PLAN, PLAN.timeline, ordered(PLAN, 2)]

KILLS = """
import os, random, signal, sys, time
from pathlib import Path
from baechi.records import Cluster, LayerGraph, Plan, Timeline, files
from baechi.records.pipeline import Pipeline
kind, path, page, kills = locals()[sys.argv[1]], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
record, chance = kind.load(path), random.Random(sys.argv[1])
text = record.to_json()
files.write(page, text)
for number in range(kills):
    child = os.fork()
    while not child:
        record.save(path)
        files.write(page, text)
    time.sleep(chance.uniform(0.001, 0.03))
    os.kill(child, signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL, "it ended by itself"
    assert path.read_text() == page.read_text() == text, number
assert kind.load(path).to_json() == text
"""


@pytest.mark.full
@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.record_kind)
def test_kills(record: AbstractRecord, tmp_path: Path) -> None:
    """Processes that are killed while they save records and pages, at any moment."""
    path, kills = tmp_path / "record.json", int(os.environ.get("BAECHI_KILLS", "20"))
    record.save(path)
    name, page = type(record).__name__, tmp_path / "page.html"
    subprocess.run([sys.executable, "-c", KILLS, name, path, page, str(kills)], check=True)
    left = [one.name for one in tmp_path.iterdir() if one not in (path, page)]
    assert len(left) <= 2 + kills // 20, left  # between the two last steps the new file has a name of its own


@pytest.mark.parametrize("step", ["write", "fsync", "link", "replace", "fchmod"])
@pytest.mark.parametrize("named", [False, True])
def test_a_full_disk(step: str, named: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old file stays, nothing is left beside, and the error names the file; so if the user interrupts."""
    path = tmp_path / "plan.json"
    path.write_text("old")
    if named:
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    for error in (OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()):

        def full(*args: object, error: BaseException = error, **options: object) -> int:
            raise error

        with monkeypatch.context() as patched:
            patched.setattr(os, step, full)
            try:
                PLAN.save(path)
            except OSError as raised:
                assert raised.errno == errno.ENOSPC and raised.filename == str(path)
            except KeyboardInterrupt:
                pass
            else:
                assert named and step == "link"
                path.write_text("old")
        assert path.read_text() == "old" and os.listdir(tmp_path) == ["plan.json"]


def test_as_plain_files_are(tmp_path: Path) -> None:
    """Permissions stay, new files have the usual ones, links lead where they led, devices are written to."""
    path, link, plain = tmp_path / "plan.json", tmp_path / "link.json", tmp_path / "plain"
    plain.write_text("x")
    PLAN.save(path)
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)
    path.chmod(0o640)
    link.symlink_to("plan.json")
    PLAN.timeline.save(link)
    assert link.is_symlink() and stat.S_IMODE(path.stat().st_mode) == 0o640
    assert Timeline.load(path).spans == PLAN.timeline.spans
    PLAN.save("/dev/null")
    os.mkfifo(tmp_path / "fifo")
    for wrong in (tmp_path / "fifo", tmp_path, tmp_path / "nowhere" / "plan.json", path / "plan.json"):
        with pytest.raises(OSError):
            PLAN.save(wrong)


def test_what_is_no_file_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pipes, folders, endless devices, and files that are too large."""
    os.mkfifo(tmp_path / "fifo")
    monkeypatch.setattr(files, "MOST_BYTES", 100)
    PLAN.save(tmp_path / "large.json")
    for name in ("fifo", "large.json", ".", "/dev/zero", "/dev/null"):
        with pytest.raises(files.RecordError):
            Plan.load(tmp_path / name)
    assert Pipeline.record_kind == "pipeline" and not files.holds("plan", tmp_path / "fifo")


def test_refused_before_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes the place of a file needs a folder that can be written; a circle of links has no place."""
    path, loop = tmp_path / "plan.json", tmp_path / "loop.json"
    path.write_text("old")
    loop.symlink_to("loop.json")
    with pytest.raises(OSError, match="a link that leads in a circle"):
        files.write(loop, "new")
    assert loop.is_symlink()
    monkeypatch.setattr(os, "access", lambda where, mode: Path(where) != tmp_path)
    with pytest.raises(PermissionError, match="has to be made in"):
        files.check_output(path)
    files.check_output("/dev/null")


def test_an_open_file_is_added_to(tmp_path: Path) -> None:
    """`--html /dev/stdout >> log` leaves in the log what it has."""
    log = tmp_path / "log"
    log.write_text("old")
    with log.open("a") as opened:
        files.write(f"/dev/fd/{opened.fileno()}", "new")
    assert log.read_text() == "oldnew"
