"""Ten thousand random steps: nobody waits for ever, and every device keeps the plan's order."""

from random import Random

import pytest
from order.drives import Drive, random_launch_order, random_topological, some

from baechi.order import LaunchOrder, waiting_layers

pytestmark = pytest.mark.default_cases(2)

SEEDS, DRIVES = range(5), 2_000


def is_not_waiting(order: LaunchOrder, reached: list[str], layer: str) -> bool:
    """The design document's rule, word for word, without a memory.

    A layer that the code went past without reaching it does not count.
    """
    past = order.code_order.index(reached[-1])

    def skipped(other: str) -> bool:
        return other not in reached and order.code_order.index(other) < past

    queue = order.queues()[order.device_of[layer]]
    before = [other for other in queue[: queue.index(layer)] if not skipped(other)]
    return (
        layer in reached
        and all(other in reached for other in before)
        and all(is_not_waiting(order, reached, other) for other in before[-1:])
        and all(is_not_waiting(order, reached, p) for p in order.parents[layer] if not skipped(p))
        and all(is_not_waiting(order, reached, p) for p in order.first.get(layer, ()) if not skipped(p))
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_the_criterion(seed: int) -> None:
    """Those and only those wait that the rule says."""
    for drive in range(DRIVES):
        order = random_launch_order(Random(seed * DRIVES + drive))
        code = [*order.code_order]
        held = [
            layer for place, layer in enumerate(code, 1) if not is_not_waiting(order, code[:place], layer)
        ]
        assert waiting_layers(order) == held, order


@pytest.mark.parametrize("seed", SEEDS)
def test_turns(seed: int) -> None:
    """Every device launches what was reached in the plan's order, all of it; who waits is who must."""
    for drive in range(DRIVES):
        chance = Random(seed * DRIVES + drive)
        order = random_launch_order(chance)
        taken = some(chance, order.code_order)
        run = Drive(order).run(taken)
        assert not run.waiting, (order, taken)
        for device, queue in order.queues().items():
            assert run.launched_on(device) == [layer for layer in queue if layer in taken], (order, taken)
        held = [
            layer for place, layer in enumerate(taken, 1) if not is_not_waiting(order, taken[:place], layer)
        ]
        assert run.waited == held, (order, taken)


@pytest.mark.parametrize("seed", SEEDS)
def test_values_that_the_code_wants(seed: int) -> None:
    """Whoever is needed launches out of turn, with all that it reads; the rest keep the plan's order."""
    for drive in range(DRIVES):
        chance = Random(seed * DRIVES + drive)
        order = random_launch_order(chance)
        taken = some(chance, order.code_order)
        run = Drive(order, values=some(chance, taken)).run(taken)
        assert sorted(run.launched) == sorted(taken), (order, taken)
        for place, layer in enumerate(run.launched):
            assert not set(order.parents[layer]) & set(run.launched[place:]), (order, taken)
        for device, queue in order.queues().items():
            in_turn = [layer for layer in run.launched_on(device) if layer not in run.forced]
            assert in_turn == [layer for layer in queue if layer in in_turn], (order, taken)


@pytest.mark.parametrize("seed", SEEDS)
def test_code_that_runs_in_another_order(seed: int) -> None:
    """Where the code reaches layers in an order of its own, all of them launch, each after its parents."""
    for drive in range(DRIVES):
        chance = Random(seed * DRIVES + drive)
        order = random_launch_order(chance)
        taken = some(chance, random_topological(chance, order.parents))
        run = Drive(order).run(taken)
        assert sorted(run.launched) == sorted(taken), (order, taken)
        for place, layer in enumerate(run.launched):
            assert not set(order.parents[layer]) & set(run.launched[place:]), (order, taken)


@pytest.mark.parametrize("seed", SEEDS)
def test_who_waits_by_criterion(seed: int) -> None:
    """Whoever waits by the order on its device waits by that of all devices; naively all wait."""
    fewer = 0
    for drive in range(DRIVES):
        order = random_launch_order(Random(seed * DRIVES + drive))
        own, all_, naive = (waiting_layers(order, c) for c in ("gpu-topo", "global-topo", "naive"))
        assert set(own) <= set(all_) <= set(naive) == set(order.code_order)
        assert Drive(order).run(order.code_order).waited == own
        fewer += len(own) < len(all_)
    assert fewer > DRIVES // 20
