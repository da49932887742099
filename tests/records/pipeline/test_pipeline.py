"""Orders are checked when a pipeline is built, whoever made them; files hold all of it."""

import copy
import json
import pickle
from collections.abc import Sequence
from dataclasses import replace

import pytest
from records.pipeline.chains import chain, equal_chain, over

from baechi.errors import PlanError, RecordError
from baechi.records.cluster import Cluster
from baechi.records.graph import LayerGraph
from baechi.records.pipeline import OrderTried, Pipeline, Task, units_of
from baechi.records.pipeline.dependencies import once_faults
from baechi.records.pipeline.merge import merged
from baechi.records.plan import Plan

F, B = "forward", "backward"


def by_hand(*tasks: str) -> tuple[Task, ...]:
    """Tasks from text: `F10` is the forward of microbatch 1, run 0."""
    return tuple(Task(F if text[0] == "F" else B, int(text[1]), int(text[2])) for text in tasks)


ONE_F_ONE_B = by_hand("F00", "F10", "F01", "B01", "F11", "B00", "B11", "B10")


def test_an_order_by_hand() -> None:
    """1F1B of two microbatches on two devices."""
    made = Pipeline(equal_chain(2), 2, ONE_F_ONE_B, limits={"cpu:0": 2, "cpu:1": 1})
    assert made.order_on("cpu:1") == by_hand("F01", "B01", "F11", "B11")
    assert made.in_flight == {"cpu:0": 2, "cpu:1": 1}


def swapped(first: int, second: int) -> list[Task]:
    order = list(ONE_F_ONE_B)
    order[first], order[second] = order[second], order[first]
    return order


@pytest.mark.parametrize(
    ("order", "faults"),
    [
        (swapped(0, 2), ["position 0 is the forward of microbatch 0, run 1 on cpu:1, before position 2"]),
        (
            swapped(0, 1),
            ["position 0 is the forward of microbatch 1, run 0", "position 1", "keep their order"],
        ),
        (swapped(3, 5), ["position 3 is the backward of microbatch 0, stage 0", "position 5", "gradient"]),
        (
            swapped(2, 3),
            ["position 2 is the backward of microbatch 0", "backward begins when the code is over"],
        ),
        (ONE_F_ONE_B[:-1], ["misses the backward of microbatch 1, stage 0 on cpu:0"]),
        ([*ONE_F_ONE_B, ONE_F_ONE_B[0]], ["positions 0 and 8 are both forward of microbatch 0, run 0"]),
        ([*ONE_F_ONE_B, Task(F, 2, 0)], ["position 8 is ('forward', 2, 0): there is no such task"]),
    ],
)
def test_orders_that_cannot_run(order: Sequence[Task], faults: list[str]) -> None:
    """Both positions are named, and what is missing, twice or unknown."""
    with pytest.raises(PlanError) as caught:
        Pipeline(equal_chain(2), 2, tuple(order))
    for fault in faults:
        assert fault in str(caught.value)


def test_of_many_faults_the_first() -> None:
    """A reversed order has hundreds of faults; twenty are listed."""
    plan = equal_chain(3)
    with pytest.raises(PlanError, match=r"and \d+ more") as caught:
        Pipeline(plan, 8, tuple(units_of(plan).tasks(8))[::-1])
    assert len(caught.value.faults) == 21


def test_limits_are_kept() -> None:
    """More in flight than a device's limit is refused, and limits that make no sense."""
    with pytest.raises(PlanError, match="2 microbatches are in flight on cpu:0, and its limit is 1"):
        Pipeline(equal_chain(2), 2, ONE_F_ONE_B, limits={"cpu:0": 1})
    with pytest.raises(PlanError, match="a limit for 'gpu': the devices are cpu:0, cpu:1"):
        Pipeline(equal_chain(2), 2, ONE_F_ONE_B, limits={"gpu": 1})
    with pytest.raises(PlanError, match="limit of cpu:0 is 0"):
        Pipeline(equal_chain(2), 2, ONE_F_ONE_B, limits={"cpu:0": 0})
    with pytest.raises(PlanError, match="microbatches is 0"):
        Pipeline(equal_chain(2), 0, ())
    with pytest.raises(PlanError, match="'mask' is split along 'rows'"):
        Pipeline(equal_chain(2), 2, ONE_F_ONE_B, split={"mask": "rows"})  # type: ignore[dict-item]


def test_files() -> None:
    """A file holds the order, limits, rules and what was tried, and is checked when read."""
    tried = (
        OrderTried("gpipe", 9.0, {"cpu:0": 4, "cpu:1": 4}),
        OrderTried("1f1b", 9.0, {}, {"cpu:1": 1}, False),
    )
    made = Pipeline(equal_chain(2), 2, ONE_F_ONE_B, "1f1b", {"cpu:1": 1}, {"x": 1, "mask": None}, tried)
    back = Pipeline.from_json(made.to_json())
    assert back.to_json() == made.to_json()
    assert (back.order, back.limits, back.split, back.tried) == (
        made.order,
        made.limits,
        made.split,
        made.tried,
    )
    assert pickle.loads(pickle.dumps(made)).to_json() == copy.deepcopy(made).to_json() == made.to_json()
    with pytest.raises(RecordError, match="misses 'order'"):
        Pipeline.from_json(made.to_json().replace('"order"', '"ordre"', 1))
    broken = made.to_json().replace('"microbatches": 2', '"microbatches": 1')
    with pytest.raises(PlanError, match="there is no such task"):
        Pipeline.from_json(broken)


def lists(plan: Plan, *texts: Sequence[str]) -> tuple[Task, ...]:
    return merged(units_of(plan), plan.cluster.names, 2, [by_hand(*text) for text in texts])


def test_one_list_of_several() -> None:
    """Orders of devices become one for the host, which obeys them all."""
    plan = equal_chain(2)
    order = lists(plan, ["F00", "F10", "B00", "B10"], ["F01", "B01", "F11", "B11"])
    made = Pipeline(plan, 2, order)
    assert made.order_on("cpu:0") == by_hand("F00", "F10", "B00", "B10")
    assert made.order_on("cpu:1") == by_hand("F01", "B01", "F11", "B11")


def test_orders_of_devices_that_contradict() -> None:
    """The first device wants a backward before the forward that it needs: the circle is told."""
    plan = equal_chain(2)
    with pytest.raises(PlanError, match="contradict each other") as caught:
        lists(plan, ["F00", "B00", "F10", "B10"], ["F01", "F11", "B01", "B11"])
    text = str(caught.value)
    assert "forward of microbatch 1, run 0 on cpu:0 (position 2) comes after" in text
    assert "backward of microbatch 0, stage 0 on cpu:0 (position 1): that device's list says so" in text
    with pytest.raises(PlanError, match=r"the list of cpu:1 has the forward of microbatch 0, run 0 on cpu:0"):
        lists(plan, ["F10", "B00", "B10"], ["F00", "F01", "F11", "B01", "B11"])


def test_code_order_is_a_constraint() -> None:
    """Two branches on two devices: no data, but the code comes to one of them first."""
    graph = chain([(1, 1)] * 2, training=False)
    graph.remove_edge("l0", "l1")
    graph.check()
    plan = over(graph, [0, 1])
    Pipeline(plan, 1, by_hand("F00", "F01"))
    with pytest.raises(PlanError, match="the code comes there first"):
        Pipeline(plan, 1, by_hand("F01", "F00"))


def test_repr() -> None:
    """A few lines, without simulating."""
    made = Pipeline(equal_chain(2), 2, ONE_F_ONE_B, "1f1b")
    assert repr(made).split("\n  ") == [
        "Pipeline of 2 microbatches by 1f1b: model, 2 stages",
        "cpu:0: 1 stage, 2 in flight",
        "cpu:1: 1 stage, 1 in flight",
    ]


def test_another_order_of_the_same() -> None:
    """A changed copy is checked, too."""
    made = Pipeline(equal_chain(2), 2, ONE_F_ONE_B)
    with pytest.raises(PlanError):
        replace(made, microbatches=3)


@pytest.mark.parametrize("microbatches", [100_000, 10**9, 10**24])
def test_many_microbatches_of_nothing(microbatches: int) -> None:
    """A pipeline without tasks is looked at once, not once a microbatch; files say no more than a call."""
    plan = Plan(LayerGraph(training=True), Cluster.virtual(2), {})
    assert once_faults(units_of(plan), (), microbatches, ()) == []
    body = json.loads(Pipeline(plan, 2, ()).to_json()) | {"microbatches": microbatches}
    if microbatches <= 100_000:
        assert Pipeline.from_json(json.dumps(body)).microbatches == microbatches
        return
    with pytest.raises(RecordError, match="not a whole number from 1 to 100,000"):
        Pipeline.from_json(json.dumps(body))
