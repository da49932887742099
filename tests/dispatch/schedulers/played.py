"""A scheduler at work on targets of known speed: time is a number, and nothing runs."""

from collections.abc import Callable

from baechi.dispatch.schedulers.abstract import AbstractScheduler, Left


def played(
    scheduler: AbstractScheduler, rows: int, seconds: Callable[[str, int], float], *, most: int | None = None
) -> tuple[float, list[tuple[str, int]]]:
    """When all rows are done, and who got which chunk."""
    now_s, left, given = 0.0, rows, []
    flying: list[tuple[float, int, str, int, float]] = []
    free_s = dict.fromkeys(scheduler.load, 0.0)
    while left or flying:
        share = scheduler.schedule(Left(left, rows, most, now_s)) if left else None
        if share is None:
            flying.sort()
            now_s, _, target, items, taken_s = flying.pop(0)
            scheduler.completed(target, items, taken_s=taken_s, now_s=now_s)
            continue
        taken_s = seconds(share.target, share.items)
        free_s[share.target] = max(now_s, free_s[share.target]) + taken_s
        flying.append((free_s[share.target], len(given), share.target, share.items, taken_s))
        given.append((share.target, share.items))
        left -= share.items
    assert scheduler.idle
    return now_s, given
