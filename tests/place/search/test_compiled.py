"""What is compiled does as it says, kept for the next process or not."""

import subprocess
import sys

from baechi.place.search.compiled import compiled


def test_without_a_place_to_keep_it() -> None:
    """A function of no file cannot be kept: it is compiled all the same."""
    scope: dict[str, object] = {}
    exec("def double(number):\n    return 2 * number", scope)
    double = compiled(scope["double"])  # type: ignore[type-var]
    assert double(21) == 42
    assert double.signatures  # by the compiler, not by Python


_SMALL = """
import sys
{without}
import baechi
from baechi.bench.models.layered import cluster_for, layered
from baechi.place.search import rounds
rounds.ESTIMATES, rounds.MOVES = 20, 10
graph = layered(16, seed=3, travel=2.0, training=True)
plan = baechi.place(graph, cluster_for(graph, 3))
print(plan.placer, plan.order, sorted(plan.device_of.items()), plan.timeline.makespan_s)
"""


def test_the_same_plan_without_the_compiler() -> None:
    """Where numba is missing, `auto` finds the same plan and says once that it is slower."""
    found = [
        subprocess.run(
            [sys.executable, "-c", _SMALL.format(without=without)], capture_output=True, text=True, check=True
        )
        for without in ("", "sys.modules['numba'] = None")
    ]
    assert found[0].stdout == found[1].stdout != ""
    assert "numba" not in found[0].stderr
    assert found[1].stderr.count("numba is not installed") == 1
