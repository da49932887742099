"""Ten thousand random steps: nobody waits for ever, and every device keeps the plan's order."""

from random import Random

import pytest
from order.drives import Drive, random_launch_order, random_taken

from baechi.order import LaunchOrder, Progress, waiting_layers

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
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_the_criterion(seed: int) -> None:
    """After every layer that the host reaches, those and only those are clear that the rule says."""
    for drive in range(DRIVES // 2):
        chance = Random(seed * DRIVES + drive)
        order = random_launch_order(chance)
        progress, reached = Progress(order), []
        for layer in random_taken(chance, order):
            reached.append(layer)
            found = progress.reach(layer)
            clear = {other for other in order.code_order if is_not_waiting(order, reached, other)}
            assert found == (layer in clear), (order, reached)
            assert {other for other in order.code_order if progress.is_not_waiting(other)} == clear


@pytest.mark.parametrize("seed", SEEDS)
def test_turns(seed: int) -> None:
    """Every device launches what was reached in the plan's order, all of it; who waits is who must."""
    for drive in range(DRIVES):
        chance = Random(seed * DRIVES + drive)
        order = random_launch_order(chance)
        taken = random_taken(chance, order)
        run = Drive(order).run(taken)
        assert not run.waiting, (order, taken)
        for device, queue in order.queues().items():
            launched = [layer for layer in run.launched if order.device_of[layer] == device]
            assert launched == [layer for layer in queue if layer in taken], (order, taken)
        progress = Progress(order)
        assert run.waited == [layer for layer in taken if not progress.reach(layer)], (order, taken)


@pytest.mark.parametrize("seed", SEEDS)
def test_who_waits_by_criterion(seed: int) -> None:
    """Whoever waits by the order on its device waits by that of all devices; naively all wait."""
    fewer = 0
    for drive in range(DRIVES):
        order = random_launch_order(Random(seed * DRIVES + drive))
        local, all_, naive = (waiting_layers(order, c) for c in ("gpu-topo", "global-topo", "naive"))
        assert set(local) <= set(all_) <= set(naive) == set(order.code_order)
        assert Drive(order).run(order.code_order).waited == local
        fewer += len(local) < len(all_)
    assert fewer > DRIVES // 20
