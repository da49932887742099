"""About how long a pipelined step takes, by contiguous cuts alone: no order is simulated.

    step  =  microbatches x the slowest device  +  the others once, shared by virtual stages

It says which of many graphs or groups of devices are worth a placement. Memory is that of the cuts.
"""

from baechi.place.pipeline.cuts import cut_over, weights_of
from baechi.place.problem import Problem

_ROUNDS = (1, 2)
"""More virtual stages seldom keep what they promise: transfers and unequal parts eat it."""

_LEFT_OUT = 8
"""Of the devices, at most one of so many is left out."""


def outlook_s(problem: Problem, microbatches: int) -> float | None:
    """Seconds of the best cut over nearly all devices; None if no cut fits."""
    weights, devices, found = weights_of(problem), list(problem.devices), list[float]()
    for used in range(len(devices), len(devices) - len(devices) // _LEFT_OUT - 1, -1):
        for rounds in _ROUNDS if used > 1 else (1,):
            device_of = cut_over(problem, weights, devices[:used] * rounds, microbatches)
            if device_of is None:
                continue
            busy_s = [0.0] * len(devices)
            for group, device in enumerate(device_of):
                busy_s[device] += weights.work_s[device][group + 1] - weights.work_s[device][group]
            slowest_s = max(busy_s)
            found.append(microbatches * slowest_s + (sum(busy_s) - slowest_s) / rounds)
    return min(found, default=None)
