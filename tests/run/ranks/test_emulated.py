"""Emulated ranks: a step takes what one process says that emulates all devices, with a host for each rank."""

from dataclasses import replace

import pytest
from run.ranks.emulation import dry, emulated, over_ranks
from run.ranks.models import MADE, built
from run.ranks.processes import Ranks

import baechi

ORDERS = ["1f1b", "gpipe", "interleaved", "auto"]


def assert_as_one_process(ranks: Ranks, name: str, text: str) -> None:
    """Kernels and transfers begin and end then, to the last digit, and devices are as full."""
    ranks.begin(emulated, name, text)
    alone = emulated(name, text)
    answers = ranks.answers()
    for found in answers:
        assert not isinstance(found, Exception), found
    for number, step in enumerate(alone):
        each = [found[number] for found in answers]
        assert sorted(span for one in each for span in one.spans) == sorted(step.spans)
        own = {
            place: size
            for rank, one in enumerate(each)
            for place, size in one.peak_bytes.items()
            if place.startswith(f"rank{rank}/")
        }
        assert own == step.peak_bytes
        assert {one.loss for one in each} == {step.loss}


@pytest.mark.default_cases(1)
@pytest.mark.parametrize("name", ["tied", "skips"])
def test_two_ranks(two: Ranks, name: str) -> None:
    assert_as_one_process(two, name, over_ranks(name, 2, 3, "1f1b"))


IN_FULL = ("towers", "skips", "gpt2")


@pytest.mark.parametrize(
    ("number", "name"),
    [
        pytest.param(number, name, marks=pytest.mark.full if name in IN_FULL else pytest.mark.nightly)
        for number, name in enumerate(MADE)
    ],
)
def test_four_ranks_in_any_order(four: Ranks, number: int, name: str) -> None:
    assert_as_one_process(four, name, over_ranks(name, 4, 4, ORDERS[number % 4], apart=number % 3 == 1))


@pytest.mark.nightly
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", MADE)
def test_two_ranks_in_any_order(two: Ranks, name: str, order: str) -> None:
    assert_as_one_process(two, name, over_ranks(name, 2, 4, order))


@pytest.mark.full
@pytest.mark.parametrize("name", ["towers", "skips", "gpt2"])
def test_a_dry_run_says_the_same(name: str) -> None:
    """In one process, without values; its clock begins elsewhere, so last digits may differ."""
    text = over_ranks(name, 2, 3, "1f1b")
    found, step = dry(name, text), emulated(name, text)[-1]
    assert found.peak_bytes == step.peak_bytes
    for said, was in zip(sorted(found.spans), sorted(step.spans), strict=True):
        assert said[:3] == was[:3]
        assert said[3:] == pytest.approx(was[3:], rel=1e-9, abs=1e-15)


def test_a_queue_of_several_ranks_is_refused() -> None:
    """Which of their transfers comes first no rank knows alone."""
    cluster = baechi.Cluster.virtual(2, ranks=True, reception="serial")
    with pytest.raises(baechi.BaechiError, match='emulate them with reception="free"'), cluster:
        pass


def test_a_plan_for_real_ranks_runs_dry() -> None:
    """They receive on each link for itself, whatever their cluster says: nothing is refused."""
    model, batch = built("towers")
    emulated_ones = baechi.Cluster.virtual(2, memory="1GiB", ranks=True)
    cluster = replace(emulated_ones, emulated=False, reception="serial")
    graph = baechi.profile(model, batch(), cluster=cluster, source="estimate")
    found = baechi.dry_run(model, batch(), baechi.place(graph, cluster, "random:1"))
    assert found.source == "dry run"
    assert all(found.peak_bytes[name] > 0 for name in cluster.names)
