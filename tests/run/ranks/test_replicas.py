"""Replicas of a pipeline over ranks: the plain model on the whole batch, and each other to the last bit."""

from pathlib import Path
from typing import Any

import pytest
import torch
from run.ranks.jobs import pipeline_of
from run.ranks.models import built
from run.ranks.processes import Ranks, ranks
from run.ranks.replica_jobs import begun_early, failing, replicated, unlike, whole, zero

import baechi

CLOSE = {"rtol": 0.0, "atol": 1e-12}


def assert_replicas(found: list[Any], name: str, replicas: int) -> None:
    """Weights and norms are those of the whole batch to 1e-12; replicas are equal to the last bit."""
    for one in found:
        assert not isinstance(one, Exception), one
    size, plain = len(found) // replicas, whole(name)
    first = found[:size]
    assert {key for one in first for key in one["weights"]} == plain["weights"].keys()
    for number, one in enumerate(found):
        assert one["index"] == number // size
        like = found[number % size]
        assert one["weights"].keys() == like["weights"].keys()
        for key, weight in one["weights"].items():
            assert torch.equal(weight, like["weights"][key]), key
            torch.testing.assert_close(weight, plain["weights"][key], **CLOSE)
    losses = torch.tensor([[loss for loss, _ in one["seen"]] for one in found], dtype=torch.float64)
    expected = torch.tensor(plain["seen"], dtype=torch.float64)
    torch.testing.assert_close(losses.mean(0), expected[:, 0], **CLOSE)
    for one in found:
        torch.testing.assert_close([norm for _, norm in one["seen"]], expected[:, 1].tolist(), **CLOSE)


def test_two_replicas_of_one_rank(two: Ranks) -> None:
    found = two(replicated, "towers", pipeline_of("towers", 1, 2, "1f1b"), 2)
    assert_replicas(found, "towers", 2)
    assert found[0]["seen"] != found[1]["seen"]  # losses are each replica's own


@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.full if n < 1 else pytest.mark.nightly)
        for n, name in enumerate(["towers", "skips", "experts", "vit"])
    ],
)
def test_two_replicas_of_two_ranks(four: Ranks, name: str, number: int) -> None:
    """Whole steps, and steps in microbatches."""
    assert_replicas(four(replicated, name, pipeline_of(name, 2, number, "1f1b"), 2), name, 2)


@pytest.mark.nightly
def test_four_replicas_of_one_rank(four: Ranks) -> None:
    assert_replicas(four(replicated, "towers", pipeline_of("towers", 1, 1, "1f1b"), 4), "towers", 4)


@pytest.mark.nightly
def test_as_replicate_planned_them(four: Ranks) -> None:
    model, batch = built("skips")
    cluster = baechi.Cluster.virtual(4, memory="1GiB")
    graph = baechi.profile(model, batch(), cluster=cluster, source="estimate", microbatches=2)
    made = baechi.replicate(graph, cluster, replicas=2, microbatches=2)
    assert len(made.groups) == 2
    assert_replicas(four(replicated, "skips", made.pipeline.to_json(), len(made.groups)), "skips", 2)


@pytest.mark.full
def test_they_share_buffers_and_a_checkpoint(four: Ranks, tmp_path: Path) -> None:
    """Statistics are those of the first replica; what is saved goes on without replicas."""
    text, folder = pipeline_of("convolutions", 2, 2, "1f1b"), str(tmp_path / "run")
    found = four(replicated, "convolutions", text, 2, folder)
    for one in found:
        assert not isinstance(one, Exception), one
    for number, one in enumerate(found):
        for key, weight in one["weights"].items():
            assert torch.equal(weight, found[number % 2]["weights"][key]), key
    model, _ = built("convolutions")
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    assert baechi.resume(model, folder, optimizer=optimizer) == 3
    held = {**found[0]["weights"], **found[1]["weights"]}
    assert held.keys() == model.state_dict().keys()
    assert all(torch.equal(weight, held[key]) for key, weight in model.state_dict().items())
    assert [one["whole"] for one in found] == [len(held), 0, 0, 0]
    assert len(list(Path(folder).iterdir())) == 3  # the table, and files of the first replica's ranks


@pytest.mark.full
def test_a_mean_waits_for_no_other_stage(four: Ranks) -> None:
    """The first stage goes on after its last backward only when the last stage has begun to add up."""
    found = four(begun_early, pipeline_of("towers", 2, 3, "1f1b"))
    for one in found:
        assert not isinstance(one, Exception), one
    assert [one["stage"] for one in found] == [0, 1, 0, 1]


WRONG = {
    "uneven": "replicas=3 needs groups of equal size, and there are 4 processes",
    "numbers": "processes were given other numbers of replicas: [2, 2, 2, 4], by rank",
    "batch": "rank 3 has another batch than rank 2: tensor 0",
    "labels": "rank 3 has integer inputs of other values",
}


@pytest.mark.nightly
@pytest.mark.parametrize("what", WRONG)
def test_what_differs_is_named(four: Ranks, what: str) -> None:
    """By the number among all processes, which are still together afterwards."""
    found = four(unlike, what, pipeline_of("towers", 2, 2, "1f1b"))
    for number, error in enumerate(found):
        if what == "labels" and number < 2:
            continue
        assert isinstance(error, ValueError if what == "uneven" else baechi.RankError), error
        assert str(error).startswith(WRONG[what]), error


@pytest.mark.nightly
def test_an_error_ends_all_replicas() -> None:
    with ranks(4, limit_s=500) as all_of_them:
        found = all_of_them(failing, pipeline_of("towers", 2, 2, "1f1b"))
    for number, error in enumerate(found):
        assert isinstance(error, ValueError if number == 3 else baechi.RankError), error
        assert "no such token" in str(error)


def test_replicas_need_processes() -> None:
    model, batch = built("towers")
    with pytest.raises(ValueError, match=r"replicas=2 needs several processes"):
        baechi.distribute(model, batch(), replicas=2)
    with pytest.raises(ValueError, match=r"replicas=0 has to be a number from 1 on"):
        baechi.distribute(model, batch(), replicas=0)
    with pytest.raises(ValueError, match=r"there are 1 processes"):
        baechi.replica(2)
    assert baechi.replica() == (0, 1)
    assert baechi.replica().group is None


@pytest.mark.nightly
def test_optimizer_state_over_replicas(four: Ranks) -> None:
    """`ZeroRedundancyOptimizer` of the weights that are here: each replica keeps a part of the state."""
    found = four(zero, pipeline_of("towers", 2, 2, "1f1b"))
    for one in found:
        assert not isinstance(one, Exception), one
    plain = whole("towers")
    for number, one in enumerate(found):
        for key, weight in one["weights"].items():
            assert torch.equal(weight, found[number % 2]["weights"][key]), key
            torch.testing.assert_close(weight, plain["weights"][key], **CLOSE)
    for place in (0, 1):
        states = [found[place]["states"], found[place + 2]["states"]]
        assert min(states) > 0
        assert sum(states) == found[place]["weights_here"]
