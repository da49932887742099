"""Named orders: the literature's formulas, exact on equal stages."""

from collections.abc import Sequence

import pytest

from baechi.order.pipeline import TEXTBOOK, Textbook, textbook_lines
from baechi.records import Cluster, LayerGraph, Plan
from baechi.records.pipeline import Pipeline, Task, units_of
from baechi.records.pipeline.dependencies import comes_after
from baechi.records.pipeline.merge import merged

SIZES = [(p, m) for p in range(1, 6) for m in range(1, 9)]


def round_the_devices(devices: int, runs: int, *, training: bool = True) -> Plan:
    graph = LayerGraph(training=training)
    for number in range(devices * runs):
        graph.add_node(f"l{number}")
        if number:
            graph.add_edge(f"l{number - 1}", f"l{number}", bytes=1)
    where = {f"l{number}": f"cpu:{number % devices}" for number in range(devices * runs)}
    return Plan(graph, Cluster.virtual(devices), where)


def ordered(plan: Plan, microbatches: int, name: Textbook) -> Pipeline:
    units, names = units_of(plan), plan.cluster.names
    lines = textbook_lines(units, len(names), microbatches, name)
    order = merged(units, names, microbatches, lines)
    made = Pipeline(plan, microbatches, order, name)
    assert [made.order_on(device) for device in names] == [tuple(line) for line in lines]
    return made


def makespan(made: Pipeline, forward: float, backward: float) -> float:
    """The longest path: tasks wait for their device and for what they read."""
    end: dict[Task, float] = {}
    free = dict.fromkeys(made.plan.cluster.names, 0.0)
    for task in made.order:
        device = made.plan.cluster.names[made.units.device(task)]
        needed = [end[before] for before, why in comes_after(made.units, task) if "code" not in why]
        end[task] = max([free[device], *needed]) + (forward if task.phase == "forward" else backward)
        free[device] = end[task]
    return max(end.values())


@pytest.mark.parametrize(("p", "m"), SIZES)
def test_gpipe_and_1f1b(p: int, m: int) -> None:
    """Makespan (m + p - 1)(f + b); live m, or min(m, p - s) on device s."""
    plan = round_the_devices(p, 1)
    gpipe, one_one = ordered(plan, m, "gpipe"), ordered(plan, m, "1f1b")
    assert makespan(gpipe, 1, 2) == makespan(one_one, 1, 2) == (m + p - 1) * 3
    assert list(gpipe.in_flight.values()) == [m] * p
    assert list(one_one.in_flight.values()) == [min(m, p - s) for s in range(p)]


@pytest.mark.parametrize(
    ("p", "v", "waves"), [(p, v, w) for p in (2, 3, 4) for v in (2, 4) for w in (1, 2, 3)]
)
def test_interleaved(p: int, v: int, waves: int) -> None:
    """The bubble is a v-th of that of 1F1B."""
    m = waves * p
    made = ordered(round_the_devices(p, v), m, "interleaved")
    assert (
        makespan(made, 1, 2) == v * m * 3 + (p - 1) * 3
    )  # in units of one run: v of them are a device's work


@pytest.mark.parametrize("name", TEXTBOOK)
@pytest.mark.parametrize(("p", "v", "m"), [(1, 1, 1), (2, 3, 5), (4, 2, 3), (3, 1, 2), (4, 4, 7)])
def test_numbers_that_do_not_divide(name: Textbook, p: int, v: int, m: int) -> None:
    """Every size gives lists with every task once, on its device; training or not."""
    for training in (True, False):
        plan = round_the_devices(p, v, training=training)
        units = units_of(plan)
        lines = textbook_lines(units, p, m, name)
        assert sorted(flat(lines)) == sorted(units.tasks(m))
        assert all(units.device(task) == d for d, line in enumerate(lines) for task in line)


def flat(lines: Sequence[Sequence[Task]]) -> list[Task]:
    return [task for line in lines for task in line]
