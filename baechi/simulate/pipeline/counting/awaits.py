"""The values for which the host waits while it goes through the code of a run.

    host     |a|b| waits for b ....|c|d| next task
    device     |--a--|---b-------|   |c|d|

Code that comes before a run, after the run before it, is gone through with that one.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from baechi.simulate.indexed_plan import IndexedPlan
from baechi.simulate.pipeline.counting.seconds import SecondsCounter


class Rest(NamedTuple):
    """What follows in a run after the last value that the host waits for on the run's own device.

    Args:
        rest_s: what the run still takes of the device.
        paced_s: from the host's begin of the run until the value is there, if the device waits for the host
            alone.
        issue_s: what the host still issues.
    """

    rest_s: float
    paced_s: float
    issue_s: float


class Awaits(NamedTuple):
    """The values for which the host waits in the code of a run.

    Args:
        devices: other devices, of which it waits for all that was issued there.
        own: what follows the last value of the run's own device; None: it waits for none.
    """

    devices: set[int]
    own: Rest | None


def waits_of(plan: IndexedPlan, run_of: Sequence[int]) -> dict[int, set[int]]:
    """By layer after which the host waits for values, the devices that made them."""
    found: dict[int, set[int]] = {}
    for reached, makers in sorted(plan.indexed.awaited.items()):
        devices = {plan.device_of[maker] for maker in makers if run_of[maker] >= 0}
        if devices:
            last = next(layer for layer in range(reached - 1, -1, -1) if run_of[layer] >= 0)
            found.setdefault(last, set()).update(devices)
    return found


def awaits_of(
    plan: IndexedPlan, run_of: Sequence[int], waits: Mapping[int, set[int]], counter: SecondsCounter
) -> list[Awaits]:
    """By run, what the host waits for."""
    seconds, found = counter.seconds, [Awaits(set(), None) for _ in counter.seconds.forward_s]
    for last, devices in waits.items():
        run, here = run_of[last], plan.device_of[last]
        found[run].devices.update(devices - {here})
        if here in devices:
            made = counter.awaited[last]
            rest_s = max(0.0, seconds.forward_s[run] - made.done_s)
            issue_s = max(0.0, seconds.host_forward_s[run] - made.issued_s)
            found[run] = found[run]._replace(own=Rest(rest_s, made.paced_s, issue_s))
    return found
