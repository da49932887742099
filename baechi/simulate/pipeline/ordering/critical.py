"""What the end of a step waited for, and where another order of a device would change that.

    the last end ◀─ its device was busy ◀─ a transfer arrived ◀─ its channel was busy ◀─ ...

A step gets shorter only if on such a way a task comes before another one that kept its device busy
(job shops: Balas 1969; Nowicki and Smutnicki 1996).
"""

from baechi.simulate.pipeline.replay import Replay


def busy_before(replay: Replay) -> dict[int, int]:
    """Tasks for which the end of the step waits, and which waited for their device.

    Args:
        replay: a list, replayed.

    Returns:
        By number of such a task, that of the one for which it waited; the later ones of the step first.
    """
    before, causes = _before(replay), _Causes(replay)
    last_s = max(replay.end_s)
    waiting = [task for task, end_s in enumerate(replay.end_s) if end_s == last_s]
    found, seen = dict[int, int](), set[int]()
    while waiting:
        task = waiting.pop()
        if task in seen:
            continue
        seen.add(task)
        earlier = before.get(task)
        if earlier is not None and replay.end_s[earlier] == replay.start_s[task]:
            found[task] = earlier
            waiting.append(earlier)
        waiting += causes.of(task)
    return found


def _before(replay: Replay) -> dict[int, int]:
    """By task, the one before it on its device."""
    found, last = dict[int, int](), dict[int, int]()
    for task in replay.order:  # which a device keeps; by times, tasks that take none could come first
        device = replay.device_of[task % replay.width]
        if device in last:
            found[task] = last[device]
        last[device] = task
    return found


class _Causes:
    """The makers for whose tensors tasks waited."""

    def __init__(self, replay: Replay) -> None:
        self._replay = replay
        self._over: dict[tuple[int, float], int] = {}
        self._arrived: dict[tuple[int, float], list[int]] = {}
        for number, (_, end_s, send, maker) in enumerate(replay.sent):
            unit = maker % replay.width
            base = maker - unit + (replay.runs if unit >= replay.runs else 0)
            self._over[replay.channel_of(send), end_s] = number
            for reader in send.readers:
                self._arrived.setdefault((base + reader, end_s), []).append(number)

    def of(self, task: int) -> list[int]:
        """Where a transfer arrived as a task began: who made it, or the one for which it queued."""
        found = []
        began_s = self._replay.held_s.get(task, self._replay.start_s[task])
        for number in self._arrived.get((task, began_s), []):
            _, _, send, maker = self._replay.sent[self._first_in_queue(number)]
            if send.source < len(self._replay.idle):
                found.append(maker)
        return found

    def _first_in_queue(self, number: int) -> int:
        while True:
            start_s, _, send, _ = self._replay.sent[number]
            earlier = self._over.get((self._replay.channel_of(send), start_s), number)
            if earlier >= number:  # one that takes no time is over as it begins
                return number
            number = earlier
