"""Choose devices by memory alone: the largest group first, each where it leaves the least memory."""

from functools import partial

from baechi.place.ledger import Ledger
from baechi.place.listing.walk import best_fit
from baechi.place.problem import ANYWHERE, Problem


def pack(problem: Problem, ledger: Ledger) -> int | None:
    """Place every group by best fit decreasing."""
    groups = [group for group, device in enumerate(ledger.device_of) if device == ANYWHERE]
    for group in sorted(groups, key=lambda group: -problem.group_bytes[group].total_bytes):
        device = best_fit(problem, partial(ledger.group_short_bytes, group))
        if device is None:
            return problem.indexed.members[group][0]
        ledger.place(group, device)
    return None
