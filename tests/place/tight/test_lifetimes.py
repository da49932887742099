"""How full devices get, from turns alone."""

from random import Random

import pytest
from place.graphs import cluster_of
from place.strategies import any_plan
from place.tight.heavy import SLOW, heavy, indexed_plan

from baechi.place.problem import Problem
from baechi.place.tight.lifetimes import Lifetimes
from baechi.simulate import simulate


@pytest.mark.parametrize("training", [False, True])
def test_lifetimes_on_one_device(training: bool) -> None:
    """On one device turns are as good as seconds."""
    for seed in range(20):
        plan = any_plan(heavy(20, seed, training=training), cluster_of(999), Random(seed))
        guesses = Lifetimes(Problem(plan.graph, plan.cluster))(
            *indexed_plan(Problem(plan.graph, plan.cluster), plan)
        )
        assert guesses == [simulate(plan).peak_bytes["d0"]]


@pytest.mark.parametrize("training", [False, True])
def test_lifetimes_on_several_devices(training: bool) -> None:
    """Over several devices the estimate is near, on average and at worst."""
    ratios = []
    for seed in range(20):
        plan = any_plan(heavy(40, seed, training=training), cluster_of(*[999] * 4, link=SLOW), Random(seed))
        problem = Problem(plan.graph, plan.cluster)
        guesses = Lifetimes(problem)(*indexed_plan(problem, plan))
        ratios += [g / p for g, p in zip(guesses, simulate(plan).peak_bytes.values(), strict=True)]
    assert 0.97 < sum(ratios) / len(ratios) < 1.03
    assert min(ratios) > 0.7
    assert max(ratios) < 1.3
