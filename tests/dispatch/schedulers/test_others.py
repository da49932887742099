"""SimpleScheduler, RoundRobin, RankScheduler, and targets."""

import pytest
from dispatch.schedulers.played import played

import baechi
from baechi import BaechiError, RankScheduler, RoundRobin, SimpleScheduler
from baechi.dispatch.schedulers import Share
from baechi.dispatch.schedulers.abstract import Left
from baechi.dispatch.schedulers.rank import device_index


def unit(target: str, items: int) -> float:
    return float(items)


@pytest.mark.parametrize(
    ("size", "rows"), [(3, [3, 3, 3, 1]), (4, [4, 4, 2]), (10, [10]), (99, [10]), (0, [10])]
)
def test_simple_divides_by_its_batch_size(size: int, rows: list[int]) -> None:
    _, given = played(SimpleScheduler("cuda:1", size), 10, unit)  # no such GPU: a name is only a name
    assert given == [("cuda:1", count) for count in rows]


def test_simple_takes_as_many_chunks_as_its_capacity_has() -> None:
    scheduler = SimpleScheduler("cpu", 4, capacity=8)
    assert [scheduler.schedule(Left(9, 9)) for _ in range(3)] == [Share("cpu", 4), Share("cpu", 4), None]
    assert scheduler.depth == 2
    scheduler.reset()
    assert scheduler.idle


@pytest.mark.parametrize(("size", "capacity"), [(-1, None), (4, 3), (True, None)])
def test_simple_refuses(size: int, capacity: int | None) -> None:
    with pytest.raises(ValueError, match=r"batch|at least"):
        SimpleScheduler("cpu", size, capacity=capacity)


def test_one_device_is_one() -> None:
    with pytest.raises(ValueError, match="the cluster has 2"):
        SimpleScheduler(baechi.Cluster.virtual(2))
    with pytest.raises(TypeError, match="type int"):
        SimpleScheduler(3)  # type: ignore[arg-type]


def test_round_robin_deals_tiles_in_turn() -> None:
    _, given = played(RoundRobin(3), 7, unit, most=1)
    workers = [[i for i, (name, _) in enumerate(given) if name.startswith(f"worker {k}")] for k in range(3)]
    assert workers == [[0, 3, 6], [1, 4], [2, 5]]


def test_round_robin_divides_rows_evenly_and_begins_anew() -> None:
    scheduler = RoundRobin(3, ["cpu"])
    first, second = played(scheduler, 10, unit)[1], played(scheduler, 10, unit)[1]
    assert [rows for _, rows in first] == [4, 4, 2]
    assert first == second
    assert len(played(scheduler, 2, unit)[1]) == 2  # no worker for nothing


def test_round_robin_refuses() -> None:
    for count in (0, -1):
        with pytest.raises(ValueError, match="num_workers"):
            RoundRobin(count)


def test_ranks_take_devices_in_turn() -> None:
    assert [device_index(rank, 5, 2) for rank in range(5)] == [0, 1, 0, 1, 0]
    with pytest.raises(ValueError, match="leave 1 idle"):
        device_index(0, 1, 2)
    assert device_index(0, 1, 2, allow_idle=True) == 0
    with pytest.raises(ValueError, match="no rank 2 among 2"):
        device_index(2, 2, 2)


def test_a_rank_is_known_from_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    with pytest.raises(BaechiError, match="LOCAL_RANK is not set"):
        RankScheduler(["cuda:0", "cuda:1"])
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    scheduler = RankScheduler(["cuda:0", "cuda:1"], 4)
    assert scheduler.schedule(Left(9, 9)) == Share("cuda:1", 4)
