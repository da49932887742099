"""List scheduling: repeatedly run the layer that can start earliest, on the device where it can.

The core of m-ETF, also used when the devices are already chosen. After ETF (Hwang, Chow,
Anger, Lee, SIAM J. Comput. 18(2), 1989), with memory, groups and channels as in m-ETF (Jeon et al.,
SoCC 2020). The original scans all ready layers times all devices for each decision. Here every
device has two heaps:

    waiting   layers by the time when their inputs could be there, a lower bound
    open      layers whose inputs could be there when the device gets free, in topological order

A bound only grows, since channels only get fuller. So it is recomputed only when its layer is at the top
of the heap, and the layer stays there or sinks. That takes O((n + e) d log n) if few layers sink twice.
"""

from collections.abc import Callable, Iterator
from heapq import heappop, heappush

from baechi.place.ledger import Ledger
from baechi.place.listing.availability import Availability
from baechi.place.listing.waiting_devices import NO_DEVICE, Awake
from baechi.place.problem import ANYWHERE, Problem

_NEVER = -1
_INF = float("inf")
_NO_HEAD = (_INF, -1, _INF, -1)


class Listing:
    """A list schedule under construction.

    Args:
        problem: what is to be placed.
        ledger: memory; what it has placed already stays there.
        choose: the device of a group of several layers, asked when its first layer is the next to
            start: `choose(listing, layer, devices where all of it fits)`.
        awake: devices that wait for favourite children; none do unless given.
    """

    def __init__(
        self,
        problem: Problem,
        ledger: Ledger,
        choose: Callable[["Listing", int, list[int]], int],
        awake: Awake | None = None,
    ) -> None:
        self._awake = awake if awake is not None else Awake({}, len(problem.cluster))
        indexed = problem.indexed
        self.problem = problem
        self.ledger = ledger
        self.clock = Availability(problem)
        self.order: list[int] = []
        self.promised_s = [0.0 for _ in problem.devices]  # work of placed groups that has not run
        self._choose = choose
        self._waiting: list[list[tuple[float, int]]] = [[] for _ in problem.devices]
        self._open: list[list[int]] = [[] for _ in problem.devices]
        self._parked: list[list[tuple[int, int]]] = [[] for _ in problem.devices]
        self._heads = [_NO_HEAD for _ in problem.devices]
        self._waits_from_s = [_INF for _ in problem.devices]  # for a favourite child, as of the last look
        self._seen = [
            [_NEVER] * len(indexed) for _ in problem.devices
        ]  # `clock.booked` when the bound was computed; other since: stale
        self._ran = [False] * len(indexed)
        self._owed_s = [0.0] * len(indexed)
        made = [[t for t in reads if indexed.source[t] >= 0] for reads in indexed.reads]
        self._missing = [len(m) + len(b) for m, b in zip(made, indexed.before, strict=True)]
        for group, device in enumerate(ledger.device_of):
            if device != ANYWHERE:
                self._promise(group, device)

    def fill(self) -> bool:
        """Run all layers."""
        for layer, missing in enumerate(self._missing):
            if missing == 0:
                self._announce(layer)
        # Each pass takes the earliest head of all devices. It runs the layer, or replaces a head that turns
        # out to be wrong: an awake device's, a layer run elsewhere, a stale bound, or no memory.
        while (head := min(self._heads)) != _NO_HEAD:
            start_s, layer, _, device = head
            if start_s >= self._waits_from_s[device]:
                waiting = self._awake.head(self, device)
                if waiting is None:
                    self._look(device)
                elif waiting != head:
                    self._heads[device] = waiting
                elif self._decided(layer, device):
                    self._run(layer, device)
                else:
                    self._look(device)
            elif self._gone(layer, device):
                self._look(device)
            elif self._seen[device][layer] != self.clock.booked[device]:
                self._work_out(layer, device, start_s)
            elif (short := self.ledger.short_bytes(layer, device)) > 0:
                self._drop(device)  # parked until the device has this much memory left
                heappush(self._parked[device], (self.ledger.slack_bytes(device) + short, layer))
                self._look(device)
            elif self._decided(layer, device):
                self._run(layer, device)
        return len(self.order) == len(self.problem.indexed)

    def starts(self, layer: int, *, latest_first: bool = False) -> Iterator[tuple[float, int]]:
        """When a layer could start and on which device, for each where it and its group fit."""
        where = self.ledger.device_of[self.problem.indexed.group_of[layer]]
        devices = self.problem.devices if where == ANYWHERE else (where,)
        free_s = self.clock.free_s
        starts = [
            (max(free_s[device], self.clock.inputs_there_s(layer, device)), device) for device in devices
        ]
        starts.sort(key=(lambda start: -start[0]) if latest_first else None)
        for start in starts:  # memory takes longer to ask for than time, and most callers want one device
            if self.ledger.short_bytes(layer, start[1]) <= 0:
                yield start

    def start_s(self, layer: int, device: int) -> float | None:
        """When a layer could start on a device; None if it and its group do not fit, or lie elsewhere."""
        where = self.ledger.device_of[self.problem.indexed.group_of[layer]]
        if where not in (ANYWHERE, device) or self.ledger.short_bytes(layer, device) > 0:
            return None
        return max(self.clock.free_s[device], self.clock.inputs_there_s(layer, device))

    def _announce(self, layer: int) -> None:
        """Make a layer, whose predecessors have run, a candidate on all devices or on its group's."""
        device = self.ledger.device_of[self.problem.indexed.group_of[layer]]
        for candidate in self.problem.devices if device == ANYWHERE else (device,):
            there_s = self.clock.inputs_there_s(layer, candidate)
            self._seen[candidate][layer] = self.clock.booked[candidate]
            heappush(self._waiting[candidate], (there_s, layer))
            start_s = max(there_s, self.clock.free_s[candidate])
            if (start_s, layer) <= self._heads[candidate] or self._heads[candidate][1] == NO_DEVICE:
                self._look(candidate)  # else it comes later than the head, which stays
        wakes = self._awake.announced(layer)
        if wakes != NO_DEVICE:
            self._look(wakes)

    def _look(self, device: int) -> None:
        """Set a device's head, the layer that could start earliest there: (start, layer, end, device)."""
        waiting, ready = self._waiting[device], self._open[device]
        free_s, work_s = self.clock.free_s[device], self.problem.work_s[device]
        while waiting and waiting[0][0] <= free_s:
            heappush(ready, heappop(waiting)[1])
        while ready and self._gone(ready[0], device):
            heappop(ready)
        while waiting and self._gone(waiting[0][1], device):
            heappop(waiting)
        if ready:
            self._heads[device] = (free_s, ready[0], free_s + work_s[ready[0]], device)
        elif waiting:
            start_s, layer = waiting[0]
            self._heads[device] = (start_s, layer, start_s + work_s[layer], device)
        else:
            self._heads[device] = _NO_HEAD
        child = self._awake.child(device)
        from_s = self._waits_from_s[device] = (
            _INF if child == NO_DEVICE else max(free_s, self.clock.earliest_s(child))
        )
        if self._heads[device][0] >= from_s != _INF:
            # a placeholder: the true head is computed when this one is least
            self._heads[device] = (from_s, NO_DEVICE, from_s, device)

    def _doubt_waiting(self) -> None:
        """Let awake devices find out anew what they do, when their heads are least.

        An urgent layer may run elsewhere. Then the child, as late but perhaps earlier in the code, is next.
        """
        for device, from_s in enumerate(self._waits_from_s):
            start_s = self._heads[device][0]
            if start_s >= from_s != _INF:
                self._heads[device] = (start_s, NO_DEVICE, start_s, device)

    def _gone(self, layer: int, device: int) -> bool:
        where = self.ledger.device_of[self.problem.indexed.group_of[layer]]
        return self._ran[layer] or where not in (ANYWHERE, device)

    def _drop(self, device: int) -> None:
        """Remove the head of a device."""
        if self._open[device]:
            heappop(self._open[device])
        else:
            heappop(self._waiting[device])

    def _work_out(self, layer: int, device: int, start_s: float) -> None:
        """Recompute the bound of a device's head, which would start at `start_s`."""
        self._seen[device][layer] = self.clock.booked[device]
        there_s = self.clock.inputs_there_s(layer, device)
        if there_s > start_s:
            self._drop(device)
            heappush(self._waiting[device], (there_s, layer))
            self._look(device)

    def _decided(self, layer: int, device: int) -> bool:
        """Place the layer's group. Returns whether it lies here; a group of several may go elsewhere."""
        group = self.problem.indexed.group_of[layer]
        if self.ledger.device_of[group] != ANYWHERE:
            return True
        chosen = device
        if len(self.problem.indexed.members[group]) > 1:
            fitting = [d for d in self.problem.devices if self.ledger.short_bytes(layer, d) <= 0]
            chosen = self._choose(self, layer, fitting)
            self._promise(group, chosen)
        self.ledger.place(group, chosen)
        if chosen != device:
            self._announce(layer)
        return chosen == device

    def _promise(self, group: int, device: int) -> None:
        for layer in self.problem.indexed.members[group]:
            self._owed_s[layer] = self.problem.work_s[device][layer]
            self.promised_s[device] += self._owed_s[layer]

    def _run(self, layer: int, device: int) -> None:
        indexed = self.problem.indexed
        self.clock.run(layer, device)
        self.ledger.run(layer)
        self.promised_s[device] -= self._owed_s[layer]
        self.order.append(layer)
        self._ran[layer] = True
        for other in self._awake.ran(layer, device):
            self._look(other)
        self._look(device)
        self._doubt_waiting()
        self._wake()
        followers = [reader for tensor in indexed.makes[layer] for reader in indexed.consumers[tensor]]
        for follower in (*followers, *indexed.after[layer]):
            self._missing[follower] -= 1
            if self._missing[follower] == 0:
                self._announce(follower)

    def _wake(self) -> None:
        """Make parked layers candidates again on devices where enough memory got free."""
        for device, parked in enumerate(self._parked):
            while parked and parked[0][0] <= self.ledger.slack_bytes(device):
                _, layer = heappop(parked)
                if not self._gone(layer, device):
                    self._seen[device][layer] = _NEVER
                    heappush(self._waiting[device], (self.clock.earliest_s(layer), layer))
                    self._look(device)
