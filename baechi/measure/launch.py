"""What the host takes to launch one kernel: many small ones, asked for while the device is busy."""

import torch

from baechi.backend.real.stopwatch import Stopwatch
from baechi.measure.timed_call import CallClock, Took, typical

_KERNELS = 200
"""Fewer than a driver queues before it lets the host wait."""

_ROUNDS = 5


def launch_seconds(watch: Stopwatch) -> float:
    """Measure what the host takes to launch a kernel from Python."""
    clock, warm_ups_s = CallClock(watch), list[float]()
    value = torch.zeros(1, device=watch.device)
    while not clock.is_warm(warm_ups_s):
        warm_ups_s.append(_launched(clock, value, learn=True).host_s)
    return typical([_launched(clock, value) for _ in range(_ROUNDS)]).host_s / _KERNELS


def _launched(clock: CallClock, value: torch.Tensor, *, learn: bool = False) -> Took:
    with torch.no_grad():
        call = clock.begin("launches")
        for _ in range(_KERNELS):
            value.add_(1)
        clock.end(call)
    clock.watch.wait()
    if learn:
        clock.learn(call)
    return clock.took(call)
