"""Hand-made worlds: every placer does there what was worked out by hand, and its plans are plans."""

import pytest
from place.cases import FACTS, Case, load
from place.checker import check
from place.every import EVERY, plan_by

from baechi.errors import PlacementError

CASES = load()


@pytest.mark.parametrize("placer", EVERY)
@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_case(case: Case, placer: str) -> None:
    """The plan is a plan, and the facts hold; or it is refused, for the layer that is to blame."""
    expected = case.expected_of(placer)
    if "refused" in expected:
        with pytest.raises(PlacementError) as caught:
            plan_by(placer, case.graph, case.cluster)
        assert expected["refused"] in ("", caught.value.layer)
        return
    plan = plan_by(placer, case.graph, case.cluster)
    check(plan)
    for name, value in expected.items():
        assert FACTS[name](plan, value), f"{name} is not {value}: {dict(plan.device_of)}, {plan.timeline}"


def test_names() -> None:
    """No case hides another."""
    assert len({case.name for case in CASES}) == len(CASES)
