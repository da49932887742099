"""The bench of programs runs each way, and counts from the plain loop."""

import pytest

from benches.programs import MODELS, taken


@pytest.mark.nightly
@pytest.mark.parametrize("name", MODELS)
def test_ways(name: str) -> None:
    found = taken(name, 2, 2, rounds=1, ways=("written", "aot_eager"))
    assert found.loop_s > 0
    assert list(found.over_loop) == ["written", "aot_eager"]
    assert all(times > 0 for times in found.over_loop.values())
