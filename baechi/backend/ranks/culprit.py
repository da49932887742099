"""Which rank is the one that all others wait for, directly or through others.

Ranks come by transfers in one order, so of all that wait the one that is first waits for a rank that does
not: that one hangs, ended, or was lost.

    rank 0  waits for rank 1    rank 1  waits for rank 2    rank 2  in train.py, line 30        it is rank 2
    rank 0  waits for rank 1    rank 1  is silent                                               it is rank 1
"""

from collections.abc import Collection, Mapping, Sequence

from baechi.backend.ranks.spot import Answer, Spot
from baechi.errors import FirstError


def culprit(asker: int, answers: Mapping[int, Answer], ended: Collection[int]) -> FirstError | None:
    """The error of the rank that a rank waits for in the end.

    Args:
        asker: who waits.
        answers: by rank; who says nothing is missing.
        ended: the ranks whose scripts said that they end.

    Returns:
        The error; None if each rank waits for one that answers, so that only a connection can be broken.
    """
    waiting, seen = answers[asker], set[int]()
    rank = asker
    while rank not in seen:
        seen.add(rank)
        answer = answers.get(rank)
        if answer is None or not answer.waits_for:
            return _error_of(rank, answer, waiting, ended)
        waiting, rank = answer, _last(answers, answer.waits_for)
    return None


def _last(answers: Mapping[int, Answer], ranks: Sequence[int]) -> int:
    """Of some ranks, one that says nothing; else the one that came least far, and of these one that runs."""
    silent = [rank for rank in ranks if rank not in answers]
    return silent[0] if silent else min(ranks, key=lambda rank: _order(answers[rank]))


def _order(answer: Answer) -> tuple[int, int, bool]:
    return answer.spot.step, answer.spot.number, bool(answer.waits_for)


def _error_of(rank: int, answer: Answer | None, waiting: Answer, ended: Collection[int]) -> FirstError:
    kind, what = "Hang", f"it does not go on: it is in {answer.line}" if answer is not None else ""
    if answer is None and rank in ended:
        kind, what = "Ended", "its script was over, or called sys.exit"
    elif answer is None:
        kind, what = "Lost", "its process was killed, or its machine does not answer"
    spot = waiting.spot
    text = f"{what}; rank {waiting.rank} has waited for {_awaited(spot)} for {waiting.waited_s:.0f} s"
    host = "unknown" if answer is None else answer.host
    return FirstError(rank, host, kind, text, spot.step or None, spot.microbatch, spot.layer)


def _awaited(spot: Spot) -> str:
    if spot.layer:
        return f"{spot.layer} of microbatch {spot.microbatch}"
    return f"it in step {spot.step}" if spot.step else "it before the first step"
