"""What differs between ranks is named before anything is sent; an error of one ends all of them."""

import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from run.ranks.jobs import (
    after_an_error,
    different,
    elsewhere,
    failing,
    gradients_elsewhere,
    pipeline_of,
    refused,
)
from run.ranks.processes import Ranks, ranks

import baechi

DIFFERENT = {
    "seed": "rank 1 has another random seed than rank 0: 5 (on rank 0: 0)",
    "weight": "rank 1 has another model than rank 0: head.weight is float64 of shape (12, 16) (on rank 0: "
    "head.weight is float64 of shape (11, 16))",
    "class": "rank 1 has another model than rank 0: left.0.norm is a Identity",
    "version": "rank 1 has another version than rank 0: baechi 0.0 (on rank 0: baechi ",
    "batch": "rank 1 has another batch than rank 0: tensor 0: float64 of shape (6, 4, 8)",
    "argument": "rank 1 has another argument of distribute than rank 0: loss_weights='sum'",
    "rows": "rank 1 has inputs of other shapes: give every rank the same batch: there",
    "labels": "rank 1 has integer inputs of other values",
}


@pytest.fixture(scope="module")
def towers() -> str:
    return pipeline_of("towers", 2, 2, "1f1b")


@pytest.mark.parametrize("what", DIFFERENT)
def test_a_difference_is_named(two: Ranks, towers: str, what: str) -> None:
    """On all ranks, which are still together afterwards."""
    for error in two(different, what, towers):
        assert isinstance(error, baechi.RankError), error
        assert str(error).startswith(DIFFERENT[what]), error


def test_weights_of_others_have_no_values(two: Ranks) -> None:
    for found in two(elsewhere, pipeline_of("tied", 2, 2, "1f1b")):
        for name, said in found.items():
            assert " on rank" in said or "over ranks" in said or name == "closure", (name, said)
            assert "has no values" in said or "none has all" in said or name == "closure", (name, said)
        cures = {
            "sum": "whole_state",
            "norm": "clip_grad_norm_",
            "drawn": "before distribute",
            "copy": "state_dict()",
            "states": "optimizer=optimizer",
            "closure": "call the model and backward() first",
        }
        for name, cure in cures.items():
            assert cure in found[name], found[name]


def test_gradients_of_others_are_made_once(two: Ranks, towers: str) -> None:
    for number, anew in two(gradients_elsewhere, towers):
        assert number > 0
        assert anew == 0


def test_an_error_of_one_rank_ends_all(towers: str) -> None:
    """The others raise it, with all that is known of it, long before the time limit."""
    with ranks(2, limit_s=500) as both:
        other, error = both(failing, towers, 1)
    assert isinstance(error, ValueError)
    assert isinstance(other, baechi.RankError)
    first = other.first
    assert first is not None and str(first) in str(other)
    assert (first.rank, first.host, first.step, first.microbatch) == (1, socket.gethostname(), 2, 0)
    assert (first.type, first.text) == ("ValueError", "no such token")
    assert first.layer.startswith("forward of ")
    assert error.__notes__[-1].startswith(f"on rank 1 (host {first.host}), step 2, microbatch 0, forward of")


@pytest.mark.nightly
def test_after_an_error_processes_start_again(towers: str) -> None:
    with ranks(2) as both:
        for error in both(after_an_error, towers):
            assert isinstance(error, baechi.RankError)
            assert "start them again" in str(error)


@pytest.mark.full
def test_an_unchanged_script(tmp_path: Path) -> None:
    """Torchrun runs the example as it is: it prints the losses of one process, once."""
    example = Path(__file__).parents[3] / "examples" / "two_processes.py"
    script = tmp_path / example.name  # it draws its picture beside it
    shutil.copy(example, script)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    losses = example.with_suffix(".out").read_text()
    assert done.stdout.startswith(losses)
    assert [line.partition(":")[0] for line in done.stdout.removeprefix(losses).splitlines()] == [
        "rank0/cpu",
        "rank1/cpu",
    ]
    assert done.stderr.count("one model over 2 processes") == 1


REFUSED = {
    "auto": "microbatches='auto' does not go over ranks: say how many",
    "regions": "compile='regions' does not go over ranks",
    "outputs": "outputs= does not go over ranks",
}
REFUSED_IN_A_STEP = {
    "values": "Data-dependent branching",
    "no loss": "a model in training has to return its loss: give distribute(..., loss=function)",
    "input gradient": "an input of the model requires a gradient",
    "kept": "the code keeps what it makes in last, which other ranks would not have",
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_does_not_go_over_ranks(two: Ranks, what: str) -> None:
    for error in two(refused, what):
        assert isinstance(error, ValueError), error
        assert str(error).startswith(REFUSED[what])


@pytest.mark.nightly
@pytest.mark.parametrize("what", REFUSED_IN_A_STEP)
def test_what_does_not_run_over_ranks(what: str) -> None:
    with ranks(2) as both:
        found = both(refused, what)
    assert any(isinstance(one, baechi.CompileError) for one in found), found
    for error in found:
        assert isinstance(error, baechi.CompileError | baechi.RankError), error
        assert REFUSED_IN_A_STEP[what] in str(error), error
