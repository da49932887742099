"""A run that was saved goes on anywhere: other ranks, another plan, one process, plain torch; and back.

The two steps that follow have the losses and norms of the run that was not interrupted, to the last bit.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from run.ranks.checkpoint_jobs import (
    dying,
    failing,
    gathered,
    resumed,
    resumed_by_torch,
    resumed_from_meta,
    saved,
    saved_after_failing,
    saved_beside,
    saved_by_torch,
)
from run.ranks.jobs import pipeline_of
from run.ranks.processes import Ranks, ranks
from safetensors.torch import load_file

import baechi

CASES = [
    ("tied", "adamw"),
    ("convolutions", "sgd"),
    ("towers", "adamw"),
    ("tied", "sgd"),
    ("towers", "nadam"),
    ("convolutions", "rmsprop"),
    ("skips", "adafactor"),
    ("gpt2", "rprop"),
]
FIRST = [
    pytest.param(*one, marks=pytest.mark.full if n < 2 else pytest.mark.nightly)
    for n, one in enumerate(CASES)
]


def assert_same(found: list[Any], expected: Any) -> None:
    for one in found:
        assert not isinstance(one, Exception), one
        assert one == expected


@pytest.fixture(scope="module")
def three() -> Any:
    with ranks(3) as made:
        yield made


@pytest.mark.full
def test_ranks_and_one_process(two: Ranks, tmp_path: Path) -> None:
    """Saved by two ranks, read by one process."""
    text, folder = pipeline_of("tied", 2, 2, "1f1b"), str(tmp_path / "run")
    first, second = two(saved, "tied", "adamw", text, folder)
    assert_same([second], first)
    assert_same([resumed("tied", "adamw", text, folder)], first)


@pytest.mark.parametrize(("name", "kind"), FIRST)
def test_other_ranks_and_plans(two: Ranks, four: Ranks, name: str, kind: str, tmp_path: Path) -> None:
    """Saved by two ranks, read by four and by one; saved by one, read by two."""
    text, folder = pipeline_of(name, 2, 3, "1f1b"), str(tmp_path / "run")
    expected, _ = two(saved, name, kind, text, folder)
    assert_same(four(resumed, name, kind, pipeline_of(name, 4, 3, "gpipe"), folder), expected)
    assert_same([resumed(name, kind, text, folder)], expected)
    alone = str(tmp_path / "alone")
    assert_same([saved(name, kind, text, alone)], expected)
    assert_same(two(resumed, name, kind, text, alone), expected)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize(("name", "kind"), [one for one in FIRST if "nadam" not in one.values])
def test_plain_torch(two: Ranks, name: str, kind: str, tmp_path: Path) -> None:
    """Without microbatches steps are torch's: it reads what ranks saved, and ranks what it saved.

    Of NAdam torch itself goes on otherwise: it reads a factor in another dtype than it had.
    """
    text, folder = pipeline_of(name, 2, 1, "1f1b"), str(tmp_path / "run")
    expected, _ = two(saved, name, kind, text, folder)
    assert_same([resumed_by_torch(name, kind, folder)], expected)
    plain = str(tmp_path / "plain")
    assert_same([saved_by_torch(name, kind, plain)], expected)
    assert_same(two(resumed, name, kind, text, plain), expected)


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_three_ranks(two: Ranks, three: Ranks, name: str, kind: str, tmp_path: Path) -> None:
    text, folder = pipeline_of(name, 2, 2, "gpipe"), str(tmp_path / "run")
    expected, _ = two(saved, name, kind, text, folder)
    assert_same(three(resumed, name, kind, pipeline_of(name, 3, 2, "1f1b"), folder), expected)


@pytest.mark.parametrize("name", [pytest.param("gpt2", marks=pytest.mark.full), "tied"])
def test_the_whole_state_on_rank_0(two: Ranks, name: str, tmp_path: Path) -> None:
    """It is that of one process, ties are ties, and `save_pretrained` writes it."""
    text = pipeline_of(name, 2, 2, "1f1b")
    first, second = two(gathered, name, text, str(tmp_path / "ranks"))
    assert not isinstance(first, Exception), first
    alone = gathered(name, text, str(tmp_path / "alone"))
    assert second == {}
    assert list(first) == list(alone)
    for key, weight in alone.items():
        assert torch.equal(first[key], weight), key
    assert len({one.data_ptr() for one in first.values()}) == len({one.data_ptr() for one in alone.values()})
    assert len({one.data_ptr() for one in first.values()}) < len(first)
    if name == "gpt2":
        files = [load_file(tmp_path / folder / "model.safetensors") for folder in ("ranks", "alone")]
        assert files[0].keys() == files[1].keys()
        assert all(torch.equal(weight, files[1][key]) for key, weight in files[0].items())


@pytest.mark.full
def test_saved_while_it_trains_on(two: Ranks, tmp_path: Path) -> None:
    """What is saved is what was there when `save` was called; a failure is the future's."""
    text, folder = pipeline_of("tied", 2, 2, "1f1b"), str(tmp_path / "run")
    first, second = two(saved_beside, "tied", "adamw", text, folder)
    assert_same([second], first)
    assert_same(two(resumed, "tied", "adamw", text, folder), first)
    with pytest.raises(baechi.CheckpointError):  # the next save would raise what the last one did not say
        raise two(saved_after_failing, pipeline_of("towers", 2, 2, "1f1b"), str(tmp_path / "file"))[0]


@pytest.mark.nightly
def test_a_model_without_memory(two: Ranks, tmp_path: Path) -> None:
    """Each rank gets memory for its own part, and for the state of its optimizer."""
    text, folder = pipeline_of("towers", 2, 2, "1f1b"), str(tmp_path / "run")
    expected, _ = two(saved, "towers", "adamw", text, folder)
    assert_same(two(resumed_from_meta, "towers", "adamw", text, folder), expected)


@pytest.mark.nightly
def test_a_rank_that_dies_while_saving(tmp_path: Path) -> None:
    """The others end, and the former checkpoint is there."""
    text, folder = pipeline_of("towers", 2, 2, "1f1b"), str(tmp_path / "run")
    with ranks(2, limit_s=500) as both:
        both.begin(dying, text, folder)
        said, nothing = both.answers()
    assert nothing is None
    assert "rank 1" in str(said) or "another rank, which was lost" in str(said), said
    assert resumed_after(text, folder) == 2


FAILURES = {
    "disk": "no checkpoint was saved in {folder}, the former checkpoint there is as it was: rank {rank}: ",
    "state": "rank {rank}: RuntimeError: the loader has no state yet",
    "step": "rank 1 saves step ",
    "folder": "rank 1 saves step ",
}


@pytest.mark.parametrize(
    ("what", "rank"),
    [
        pytest.param("disk", 1, marks=pytest.mark.full),
        pytest.param("state", 0, marks=pytest.mark.full),
        *[pytest.param(what, rank, marks=pytest.mark.nightly) for what, rank in (("disk", 0), ("state", 1))],
        *[pytest.param(what, 1, marks=pytest.mark.nightly) for what in ("step", "folder")],
    ],
)
def test_who_cannot_save_ends_no_run(two: Ranks, what: str, rank: int, tmp_path: Path) -> None:
    """All ranks raise, the former checkpoint stays, they train on, and save again."""
    text, folder = pipeline_of("towers", 2, 2, "1f1b"), tmp_path / "run"
    found = two(failing, what, rank, text, str(folder))
    said = FAILURES[what].format(folder=folder, rank=rank)
    for number, one in enumerate(found):
        assert not isinstance(one, Exception), one
        _, _, text_of_error = one["error"].partition(": ")
        expected = "the loader has no state yet" if what == "state" and number == rank else said
        assert text_of_error.startswith(expected), one
        assert one["kept"]
        assert one["seen"] == found[0]["seen"]
        assert one["files"] == 3  # the table, and a file of each rank
    assert_same(two(resumed_after, text, str(folder)), 4)


def resumed_after(text: str, folder: str) -> int:
    from run.ranks.checkpoint_jobs import Loop

    loop = Loop("towers", "adamw", text, new=True)
    return baechi.resume(loop.model, folder, **loop.state)
