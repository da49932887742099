"""One call on a device: what it takes there, and what the host takes to ask for it.

    host      |idle|base|spin|start|call..........|end|
    device         |base|~~~~~~~~~ spin ~~~~~~~~~~~~~~~~|start|call......|end|

The device is idle first, then kept busy until the host has asked for the whole call. So between `start` and
`end` it never waits for the host, and the host never waits for it. How long it has to be busy is learnt
while calls are warmed up. A call that itself waits for the device (`.item()`) would wait for the spin, so it
gets none. Where a device has no streams (the CPU), host and device are one.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

from baechi.backend.real.stopwatch import Stopwatch

_LEAST_SPIN_S, _MOST_SPIN_S = 100e-6, 250e-3
_FASTER, _LEAST_WARM_UPS, _MOST_WARM_UPS = 0.95, 2, 8
_WAITS = 2
"""So often a call takes the host longer than the spin before it: then it waits for the device itself."""


class Took(NamedTuple):
    """What a call took.

    Args:
        device_s: seconds of the device.
        host_s: seconds of the host to ask for it; the same where host and device are one.
        behind: whether the device was behind the host all the time, so that the two are apart.
    """

    device_s: float
    host_s: float
    behind: bool = True

    def __add__(self, other: object) -> "Took":
        if not isinstance(other, Took):
            return NotImplemented
        behind = self.behind and other.behind
        return Took(self.device_s + other.device_s, self.host_s + other.host_s, behind)


@dataclass(slots=True)
class Call:
    """The moments of a call.

    Args:
        key: calls that take equally long have the same.
        spin_s: how long the device was kept busy before it.
        base, start, end: moments of the device: before the spin, and around the call.
        base_s, start_s, end_s: the host's clock there.
    """

    key: str
    spin_s: float
    base: Any
    base_s: float
    start: Any
    start_s: float
    end: Any = None
    end_s: float = 0.0


class CallClock:
    """Times calls on one device.

    Args:
        watch: of the device.
    """

    def __init__(self, watch: Stopwatch) -> None:
        self.watch = watch
        self._spin_s: dict[str, float] = {}
        self._waited: Counter[str] = Counter()

    def begin(self, key: str, *, inside: bool = False) -> Call:
        """Right before a call."""
        watch, spin_s, base, base_s = self.watch, 0.0, None, 0.0
        if watch.has_streams and not inside:
            watch.wait()
            base_s, base = watch.host_s(), watch.now()
            spin_s = self._spin_s.get(key, 0.0)
            if spin_s:
                watch.spin(spin_s)
        start = watch.now()
        return Call(key, spin_s, base, base_s, start, watch.host_s())

    def end(self, call: Call) -> None:
        """Right after it."""
        call.end_s = self.watch.host_s()
        call.end = self.watch.now()

    def took(self, call: Call) -> Took:
        """What a call took; `watch.wait` comes before."""
        watch, host_s = self.watch, call.end_s - call.start_s
        device_s = watch.seconds(call.start, call.end)
        if call.base is None:
            return Took(device_s, host_s)
        return Took(device_s, host_s, call.end_s - call.base_s <= watch.seconds(call.base, call.start))

    def learn(self, call: Call) -> None:
        """While calls are warmed up: find how long the device has to be kept busy."""
        if call.base is None or self._spin_s.get(call.key) == 0:
            return
        host_s = call.end_s - call.start_s
        if 0 < call.spin_s <= host_s:
            self._waited[call.key] += 1
            if self._waited[call.key] == _WAITS:
                self._spin_s[call.key] = 0.0
        else:
            self._spin_s[call.key] = min(_MOST_SPIN_S, 2 * host_s + _LEAST_SPIN_S)

    def is_warm(self, rounds_s: list[float]) -> bool:
        """Whether calls are warm: the last round was hardly faster than the fastest before."""
        least = _LEAST_WARM_UPS + self.watch.has_streams * _WAITS  # to learn who waits
        return len(rounds_s) >= _MOST_WARM_UPS or (
            len(rounds_s) >= least and rounds_s[-1] > _FASTER * min(rounds_s[:-1])
        )


def typical(samples: Iterable[Took]) -> Took:
    """The medians of several calls."""
    taken = list(samples)
    kept = [one for one in taken if one.behind] or taken
    return Took(median([one.device_s for one in kept]), median([one.host_s for one in kept]), kept[0].behind)
