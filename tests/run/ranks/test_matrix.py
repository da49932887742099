"""A fault of any kind, anywhere, on the first or the last rank, ends all ranks with the first error."""

import itertools
import re
import signal
from pathlib import Path

import pytest
from run.ranks.jobs import pipeline_of
from run.ranks.scripts import FAULTY, after_s, raised_after_s, run_script

KINDS = "raise", "exit", "kill", "hang", "interrupt"
PLACES = "forward", "backward", "step", "loop"
FULL = [
    ("raise", "forward", 0),
    ("raise", "step", 1),
    ("kill", "forward", 1),
    ("exit", "loop", 0),
    ("kill", "backward", 0),
    ("hang", "loop", 1),
    ("interrupt", "loop", 0),
]
HANG_S, ALL_S = 12.0, 60.0
"""The limit for hangs; and what no machine is too busy for: on a free one it takes two seconds."""


def cases() -> list[object]:
    found = []
    for case in itertools.product(KINDS, PLACES, (0, 1)):
        marks = pytest.mark.full if case in FULL else pytest.mark.nightly
        found.append(pytest.param(*case, marks=marks))
    return found


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plan") / "pipeline.json"
    path.write_text(pipeline_of("towers", 2, 2, "1f1b"))
    return path


def says(kind: str, place: str, rank: int) -> list[str]:
    """What is said of a fault, on the rank that hears of it."""
    kinds = {
        "raise": "ValueError: no such token",
        "exit": "Ended: " if place in ("step", "loop") else "SystemExit",
        "kill": "Lost: ",
        "hang": "Hang: it does not go on: it is in ",
        "interrupt": "KeyboardInterrupt",
    }
    # between calls a rank that raises is behind step 2; others are, or wait, in the next one
    steps = {"step": 3, "loop": 2} if kind in ("raise", "interrupt") else {"step": 4, "loop": 3}
    found = [f"the step was ended by rank {rank} (host ", f"step {steps.get(place, 3)}", kinds[kind]]
    if place in ("forward", "backward") and (kind, rank) != ("kill", 0):  # it takes torch's store along
        found.append(" of ")
    return found


@pytest.mark.parametrize(("kind", "place", "rank"), cases())
def test_it_ends_all_ranks(plan: Path, kind: str, place: str, rank: int) -> None:
    ended = run_script(2, [FAULTY, plan, kind, place, rank], HANG_S if kind == "hang" else 500.0)
    other = ended[1 - rank]
    for words in says(kind, place, rank):
        assert words in other.said, other.said
    assert "RankError: " in other.said and other.code == 1
    assert ended[rank].code == {"raise": 1, "exit": 3, "kill": -9, "hang": -15, "interrupt": -2}[kind]
    if kind == "hang":
        assert "faulty.py" in ended[rank].said and "time.sleep" in ended[rank].said, "its stack"
    seconds, raised_s = after_s(ended), raised_after_s(ended, 1 - rank)
    print(f"{kind} {place} {rank}: raised after {raised_s:.1f} s, all ended after {max(seconds):.1f} s")
    assert max(seconds) < ALL_S + (HANG_S if kind == "hang" else 0), seconds


@pytest.mark.nightly
def test_a_rank_in_code_of_its_own(plan: Path) -> None:
    """It cannot hear of the error, so its process ends, and says where it was."""
    first, second = run_script(2, [FAULTY, plan, "late", "loop", 0], 500.0)
    assert first.code == 1
    assert second.code == -signal.SIGTERM
    assert "the step was ended by rank 0 (host " in second.said and "ValueError: no such token" in second.said
    assert "time.sleep(600)" in second.said


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("kind", "place", "rank"), [("hang", "backward", 3), ("kill", "forward", 2), ("raise", "step", 1)]
)
def test_four_ranks(tmp_path: Path, kind: str, place: str, rank: int) -> None:
    """All say the same, also those that wait for it through others."""
    path = tmp_path / "pipeline.json"
    path.write_text(pipeline_of("towers", 4, 4, "1f1b"))
    ended = run_script(4, [FAULTY, path, kind, place, rank], HANG_S if kind == "hang" else 500.0)
    said = set()
    for other in [one for number, one in enumerate(ended) if number != rank]:
        assert other.code == 1, other.said
        said.add(re.findall(r"RankError: (the step was ended by .*)", other.said)[-1])
    (text,) = said
    assert text.startswith(says(kind, place, rank)[0]), text
