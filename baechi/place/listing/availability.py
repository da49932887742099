"""Times while placing: when devices and channels are free, and when tensors arrive on devices.

Transfers follow the rule of `baechi.cost.channel`, applied in the order of placing. A tensor that is on
a device already is not sent there again.
"""

from baechi.cost.channel import Channels
from baechi.place.problem import Problem

_ABSENT = -1.0
_NEVER = -1


class Availability:
    """The schedule so far.

    Args:
        problem: what is to be placed.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._channels = Channels(problem.cluster)
        self._ready_s = [0.0] * len(problem.indexed.source)
        self._home = [problem.host] * len(problem.indexed.source)
        self._travel_s = [[0.0] * len(problem.indexed.source) for _ in problem.devices]
        self._at_s = [[_ABSENT] * len(problem.indexed.source) for _ in problem.devices]
        self._behind_s = [0.0] * len(problem.indexed)
        self._reads: list[list[int] | None] = [None] * len(problem.indexed)
        self.free_s = [0.0 for _ in problem.devices]
        self.booked = [0 for _ in problem.devices]  # transfers to each device
        # by device and layer: `booked` when `inputs_there_s` was asked for, and its answer, valid until then
        self._asked = [[_NEVER] * len(problem.indexed) for _ in problem.devices]
        self._answer_s = [[0.0] * len(problem.indexed) for _ in problem.devices]
        for tensor, maker in enumerate(problem.indexed.source):
            if maker < 0:
                self._is_at(tensor, problem.host)

    def earliest_s(self, layer: int) -> float:
        """When all predecessors of a layer have run: it cannot start earlier on any device."""
        made_s = [self._ready_s[tensor] for tensor in self._problem.indexed.reads[layer]]
        return max(self._behind_s[layer], *made_s) if made_s else self._behind_s[layer]

    def inputs_there_s(self, layer: int, device: int) -> float:
        """When all of a layer's inputs could be on a device. Later placements never make this earlier."""
        if self._asked[device][layer] != self.booked[device]:
            self._asked[device][layer] = self.booked[device]
            self._answer_s[device][layer] = self._inputs_there_s(layer, device)
        return self._answer_s[device][layer]

    def _inputs_there_s(self, layer: int, device: int) -> float:
        ready_s, home = self._ready_s, self._home
        at_s, travel_s = self._at_s[device], self._travel_s[device]
        latest_s = self._behind_s[layer]
        transfers = []
        for tensor in self._in_queue_order(layer):
            there_s = at_s[tensor]
            if there_s == _ABSENT:
                transfers.append((ready_s[tensor], home[tensor], travel_s[tensor]))
            elif there_s > latest_s:
                latest_s = there_s
        return max(latest_s, self._channels.last_arrival_s(device, transfers)) if transfers else latest_s

    def run(self, layer: int, device: int) -> None:
        """Run a layer next on a device, and send its missing inputs there."""
        indexed, at_s = self._problem.indexed, self._at_s[device]
        start_s = max(self.free_s[device], self._behind_s[layer])
        for tensor in self._in_queue_order(layer):
            if at_s[tensor] != _ABSENT:
                continue
            home, ready_s = self._home[tensor], self._ready_s[tensor]
            _, at_s[tensor] = self._channels.book(home, device, ready_s, self._travel_s[device][tensor])
            self.booked[device] += 1
        start_s = max([start_s, *[at_s[tensor] for tensor in indexed.reads[layer]]])
        end_s = start_s + self._problem.work_s[device][layer]
        self.free_s[device] = end_s
        for tensor in indexed.makes[layer]:
            self._is_at(tensor, device)
            self._ready_s[tensor] = at_s[tensor] = end_s
        for follower in indexed.after[layer]:
            self._behind_s[follower] = max(self._behind_s[follower], end_s)

    def _in_queue_order(self, layer: int) -> list[int]:
        """The tensors that a layer reads, all of them made, by the time when they are ready."""
        found = self._reads[layer]
        if found is None:
            reads = self._problem.indexed.reads[layer]
            found = self._reads[layer] = sorted(reads, key=self._ready_s.__getitem__)
        return found

    def _is_at(self, tensor: int, home: int) -> None:
        """Note where a tensor is made, and so how long it travels to each device."""
        size_bytes = self._problem.indexed.size_bytes[tensor]
        self._home[tensor] = home
        for device, travel_s in enumerate(self._travel_s):
            travel_s[tensor] = self._problem.travel_s(home, device, size_bytes)
