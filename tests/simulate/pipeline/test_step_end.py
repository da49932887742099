"""What follows the tasks, hand-worked."""

import pytest

from baechi.cost.transfer import link_table
from baechi.records import Cluster, Device, Link
from baechi.simulate.pipeline.step_end import Closing

LINK_S, LAUNCH_S, CHARGE_S = 0.5, 0.1, 0.2


def closing(returned: list[tuple[int, int, bool]], *, fetches: bool = True, name: str = "d{}") -> Closing:
    """Two devices that move 10 bytes a second; 40 bytes of gradients on the one, 20 on the other."""
    devices = tuple(Device(name.format(number), bytes_per_s=10.0) for number in range(2))
    cluster = Cluster(devices, link=Link(LINK_S, 1e12), launch_s=LAUNCH_S)
    return Closing(cluster, link_table(cluster), LAUNCH_S, CHARGE_S, returned, fetches, [40, 20])


def test_a_loss_and_what_waits_for_it() -> None:
    """Three products and two sums of 4 bytes, a fetch, its gradient to both, two passes over theirs."""
    end_s, worked_s = closing([(1, 4, True)]).end_s(3, [1.0], [0.0, 0.0])
    assert len(worked_s) == 1
    joined_s = 1.0 + 5 * LAUNCH_S + 0.8
    fetched_s = joined_s + LINK_S
    assert end_s == pytest.approx(fetched_s + LAUNCH_S + CHARGE_S + LINK_S + 2 * 40 / 10)
    assert sum(worked_s) == pytest.approx(5 * LAUNCH_S + 3 * (LAUNCH_S + CHARGE_S) + 2 * LAUNCH_S)


def test_a_busy_device_multiplies_later() -> None:
    """It begins when its own tasks are over."""
    end_s, _ = closing([(1, 4, True)]).end_s(3, [1.0], [100.0, 0.0])
    assert end_s == pytest.approx(100.0 + 2 * 40 / 10)


def test_a_loss_that_stays() -> None:
    """Nothing is fetched, and the gradient of the loss is there already on its own device."""
    end_s, worked_s = closing([(1, 4, True)], fetches=False).end_s(3, [1.0], [0.0, 0.0])
    assert end_s == pytest.approx(1.0 + 5 * LAUNCH_S + 0.8 + LAUNCH_S + CHARGE_S + LINK_S + 2 * 40 / 10)
    assert sum(worked_s) == pytest.approx(5 * LAUNCH_S + LAUNCH_S + CHARGE_S + 2 * LAUNCH_S)


def test_outputs_are_put_together() -> None:
    """In one kernel, which reads and writes all of them; nothing is handed over then."""
    end_s, worked_s = closing([(0, 50, False)]).end_s(4, [1.0], [0.0, 0.0])
    assert end_s == pytest.approx(1.0 + LAUNCH_S + 2 * 200 / 10 + LINK_S)
    assert sum(worked_s) == pytest.approx(2 * LAUNCH_S + CHARGE_S)


def test_each_rank_ends_by_itself() -> None:
    """The loss is joined on its rank; each rank's host multiplies its own, and sends nothing."""
    ranks = closing([(1, 4, True)], fetches=False, name="rank{}/d")
    end_s, worked_s = ranks.end_s(3, [7.0, 1.0], [2.0, 0.0])
    joined_s = 1.0 + 5 * LAUNCH_S + 0.8
    assert end_s == pytest.approx(max(7.0 + 2 * 40 / 10, joined_s + 2 * 20 / 10))
    assert worked_s == pytest.approx([LAUNCH_S, 6 * LAUNCH_S])
