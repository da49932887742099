"""Of ranks that wait for each other, the one that does not go on is named."""

import random

from baechi.backend.ranks.culprit import culprit
from baechi.backend.ranks.spot import Answer, Spot
from baechi.order.pipeline.by_rank import Transfer


def answer(rank: int, *waits_for: int, step: int = 5, number: int = 0) -> Answer:
    return Answer(rank, f"host{rank}", Spot(step, number, 2, "forward of h.7"), waits_for, 31.0, "train.py")


def test_a_rank_that_others_wait_for_through_others() -> None:
    answers = {0: answer(0, 1, number=9), 1: answer(1, 2, number=8), 2: answer(2), 3: answer(3)}
    found = culprit(0, answers, [])
    assert found is not None
    assert str(found) == (
        "rank 2 (host host2), step 5, microbatch 2, forward of h.7: Hang: it does not go on: it is in "
        "train.py; rank 1 has waited for forward of h.7 of microbatch 2 for 31 s"
    )


def test_a_rank_that_is_silent() -> None:
    answers = {0: answer(0, 1), 2: answer(2, 1)}
    lost, ended = culprit(2, answers, []), culprit(2, answers, [1])
    assert lost is not None and (lost.rank, lost.type) == (1, "Lost")
    assert ended is not None and (ended.rank, ended.type) == (1, "Ended")


def test_all_wait_for_all_but_one() -> None:
    """Who is behind is named; who waits for that one as well is not."""
    answers = {
        0: answer(0, *range(4)),
        1: answer(1, 2, step=4, number=3),
        2: answer(2, step=4),
        3: answer(3, *range(4)),
    }
    found = culprit(0, answers, [])
    assert found is not None and found.rank == 2


def test_ranks_of_another_replica() -> None:
    """Only those that are waited for may be late, however far behind others are."""
    answers = {0: answer(0, 0, 1), 1: answer(1), 2: answer(2, 2, 3, step=1), 3: answer(3, step=1)}
    found = culprit(0, answers, [])
    assert found is not None and found.rank == 1


def test_each_waits_for_one_that_answers() -> None:
    assert culprit(0, {0: answer(0, 1), 1: answer(1, 0)}, []) is None


def test_of_any_order_the_rank_that_stops() -> None:
    """Random orders on rendezvous channels: one rank stops anywhere; each that waits names it."""
    for seed in range(300):
        draw = random.Random(seed)
        size, stops_at = draw.randint(2, 5), draw.randint(0, 30)
        pairs = [draw.sample(range(size), 2) for _ in range(40)]
        order = [Transfer(n, a, b, 0, 0, 0, False, (1,), (1,), "float32") for n, (a, b) in enumerate(pairs)]
        lists = [[one for one in order if rank in (one.source, one.target)] for rank in range(size)]
        stopped, at = draw.randrange(size), [0] * size
        moved = True
        while moved:
            moved = False
            for one in order:
                ends = (one.source, one.target)
                meets = all(at[r] < len(lists[r]) and lists[r][at[r]] is one for r in ends)
                if meets and not any(r == stopped and at[r] >= stops_at for r in ends):
                    moved = True
                    for r in ends:
                        at[r] += 1
        answers = {}
        for rank in range(size):
            is_over = at[rank] == len(lists[rank])
            one = None if is_over or rank == stopped else lists[rank][at[rank]]
            others = [] if one is None else [one.source + one.target - rank]
            answers[rank] = answer(rank, *others, number=99 if one is None else one.number)
        for rank, said in answers.items():
            if said.waits_for:
                found = culprit(rank, answers, [])
                assert found is not None and found.rank == stopped, seed
