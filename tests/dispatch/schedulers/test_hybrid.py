"""HybridScheduler: priorities, capacities, what is refused, and earliest finish."""

from typing import Any

import pytest
from dispatch.schedulers.played import played

from baechi import BaechiError, HybridScheduler
from baechi.dispatch.schedulers import Share
from baechi.dispatch.schedulers.abstract import Left
from baechi.dispatch.schedulers.hybrid import DeviceStatus


def test_the_highest_priority_with_room_gets_the_chunk() -> None:
    scheduler = HybridScheduler(["cpu", "cuda:0"], [2, 4], [2, 8], [0, 1])
    assert scheduler.schedule(Left(20, 20)) == Share("cuda:0", 4)
    assert scheduler.schedule(Left(16, 20)) == Share("cuda:0", 4)
    assert scheduler.schedule(Left(12, 20)) == Share("cpu", 2)
    assert scheduler.schedule(Left(10, 20)) is None
    scheduler.completed("cuda:0", 4)
    assert scheduler.schedule(Left(10, 20)) == Share("cuda:0", 4)


def test_ties_go_to_the_first_and_one_chunk_is_in_flight_by_default() -> None:
    scheduler = HybridScheduler(["cuda:1", "cuda:0"], 3)
    assert [scheduler.schedule(Left(9, 9)) for _ in range(3)] == [
        Share("cuda:1", 3),
        Share("cuda:0", 3),
        None,
    ]


@pytest.mark.parametrize(("capacity", "chunks"), [(4, 1), (7, 1), (8, 2), (13, 3)])
def test_capacity_counts_rows(capacity: int, chunks: int) -> None:
    scheduler = HybridScheduler(["cuda:0"], 4, capacity)
    given = [scheduler.schedule(Left(99, 99)) for _ in range(chunks + 1)]
    assert [share is None for share in given] == [False] * chunks + [True]


def test_the_last_chunk_is_what_is_left_and_counts_as_that() -> None:
    scheduler = HybridScheduler(["cuda:0"], 4, 8)
    assert scheduler.schedule(Left(3, 11)) == Share("cuda:0", 3)
    assert scheduler.load == {"cuda:0": 3}
    assert scheduler.schedule(Left(4, 11)) == Share("cuda:0", 4)  # 3 + 4 <= 8


def test_completing_what_is_not_in_flight_is_an_error() -> None:
    scheduler = HybridScheduler(["cuda:0"], 4)
    scheduler.schedule(Left(4, 4))
    with pytest.raises(BaechiError, match="no target 'cuda:9'"):
        scheduler.completed("cuda:9", 4)
    with pytest.raises(BaechiError, match="completes 5 items and has 4"):
        scheduler.completed("cuda:0", 5)
    scheduler.completed("cuda:0", 4)
    with pytest.raises(BaechiError, match="has 0 in flight"):
        scheduler.completed("cuda:0", 0)


def test_a_function_is_a_policy() -> None:
    seen: list[DeviceStatus] = []

    def least_loaded(status: DeviceStatus) -> float:
        seen.append(status)
        return -status.load / status.capacity

    scheduler = HybridScheduler(["cuda:0", "cuda:1"], 1, [4, 2], policy=least_loaded)
    given = [scheduler.schedule(Left(9, 9)) for _ in range(4)]
    assert [share.target for share in given if share] == ["cuda:0", "cuda:1", "cuda:0", "cuda:0"]
    assert seen[0] == DeviceStatus("cuda:0", 0, 1, 4, 0.0, 9)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"devices": []}, "there is none"),
        ({"devices": ["cuda:0", "cuda:0"]}, "cuda:0 is there twice"),
        ({"devices": ["cpu", "cpu:1"]}, "are one CPU"),
        ({"devices": ["cuda", "cuda:1"]}, "says no index"),
        ({"batch_sizes": 0}, "at least 1"),
        ({"batch_sizes": [1, 2, 3]}, "batch_sizes has 3 entries for 2 devices"),
        ({"capacities": [4, 3]}, "capacity of 3 is below its batch size of 4"),
        ({"capacities": []}, "capacities has 0 entries"),
        ({"priorities": [1, 2, 3]}, "priorities has 3 entries"),
        ({"policy": "best"}, "no policy 'best'"),
        ({"pace_s": {"cuda:7": {1: 1.0}}}, "pace_s names cuda:7"),
    ],
)
def test_refusals(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HybridScheduler(**{"devices": ["cuda:0", "cuda:1"], "batch_sizes": 4, **arguments})


@pytest.mark.parametrize("sizes", [[4608, 4608], [512, 512], [4096, 512], [100, 4000]])
@pytest.mark.parametrize("slower", [1, 3, 10, 100])
def test_earliest_finish_divides_as_the_speeds_do(sizes: list[int], slower: int) -> None:
    """Seconds are straight lines: a launch, and so much for each row."""

    def seconds(target: str, rows: int) -> float:
        return 2.0 + rows * (slower if target == "cuda:1" else 1.0)

    paces = {name: {1: seconds(name, 1), 4608: seconds(name, 4608)} for name in ("cuda:0", "cuda:1")}
    scheduler = HybridScheduler(["cuda:0", "cuda:1"], sizes, policy="earliest_finish", pace_s=paces)
    took_s, given = played(scheduler, 4608, seconds)
    fast_only, _ = played(HybridScheduler(["cuda:0"], sizes[0]), 4608, seconds)
    best_s = 4608 / (1 + 1 / slower)  # without launches
    assert took_s <= fast_only
    assert took_s <= 1.05 * best_s + 2.0 * len(given)
    assert sum(rows for _, rows in given) == 4608


def test_greedy_gives_a_slow_device_the_last_chunk_and_earliest_finish_does_not() -> None:
    """What systems with priorities do: 4,608 rows, a slow device that takes 100 times as long for each."""

    def seconds(target: str, rows: int) -> float:
        return rows * (100.0 if target == "cpu" else 1.0)

    paces = {"cuda:0": {1: 1.0}, "cpu": {1: 100.0}}
    greedy, _ = played(HybridScheduler(["cuda:0", "cpu"], [4096, 512], priorities=[1, 0]), 4608, seconds)
    scheduler = HybridScheduler(["cuda:0", "cpu"], [4096, 512], policy="earliest_finish", pace_s=paces)
    assert greedy == 51200
    assert played(scheduler, 4608, seconds)[0] <= 4608


def test_without_paces_devices_are_measured_first() -> None:
    def seconds(target: str, rows: int) -> float:
        return rows * (7.0 if target == "cuda:1" else 1.0)

    scheduler = HybridScheduler(["cuda:0", "cuda:1"], 256, policy="earliest_finish")
    played(scheduler, 4608, seconds)
    took_s, _ = played(scheduler, 4608, seconds)  # the second call knows
    assert took_s <= 1.05 * 4608 / (1 + 1 / 7)
