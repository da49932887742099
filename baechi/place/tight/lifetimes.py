"""Quick estimates of peaks: lifetimes of tensors are counted in turns instead of seconds.

The simulator takes milliseconds, too long for a search that needs thousands of peaks. Here a turn is the
running of a layer, on any device, in forward and then in reverse in backward. Each tensor lives from one
turn to another, by the rules of `baechi.simulate.memory.event_memory`. Real devices do not wait for each
other's turns, so this is an estimate, and the simulator checks the placements that it favours.
"""

from collections.abc import Sequence
from itertools import accumulate

from baechi.cost.indexed_graph import FROM_HOST
from baechi.cost.memory import update_peak_bytes
from baechi.place.problem import Problem


class Lifetimes:
    """Peaks of placements of a problem.

    Args:
        problem: what is placed.
    """

    def __init__(self, problem: Problem) -> None:
        indexed = problem.indexed
        self._problem = problem
        self._turns = len(indexed) * (2 if problem.training else 1)
        self._released_by = {maker: layer for layer, makers in indexed.releases.items() for maker in makers}
        self._plain = not self._released_by and not any(indexed.is_view)
        self._made = [[(indexed.size_bytes[t], indexed.consumers[t]) for t in made] for made in indexed.makes]
        self._uploads = [t for t, maker in enumerate(indexed.source) if maker == FROM_HOST]

    def __call__(self, device_of: Sequence[int], place: Sequence[int]) -> list[int]:
        """Estimate how full each device gets."""
        turns, footprints = self._turns, self._problem.footprints
        changes = [[0] * (turns + 1) for _ in self._problem.devices]
        tops = [[0] * turns for _ in self._problem.devices]
        always = [
            [0, 0, 0, 0] for _ in self._problem.devices
        ]  # weights, updates, the largest update; gradients
        until = place if self._plain else self._held_until(place)
        travel = self._copies_in_training if self._problem.training else self._copies
        for layer, here in enumerate(device_of):
            begin, part = place[layer], footprints[layer]
            change, top, sums = changes[here], tops[here], always[here]
            received = 0
            for size, consumers in self._made[layer]:
                if any([device_of[reader] != here for reader in consumers]):
                    received += travel(size, consumers, here, begin, device_of, until, changes)
            sums[0] += part.always_bytes
            sums[1] += part.update_bytes
            sums[2] = max(sums[2], part.largest_update_bytes)
            sums[3] += part.gradient_bytes
            change[begin] += part.saved_bytes + part.output_bytes
            if part.output_bytes:
                change[self._end(layer, device_of, until) + 1] -= part.output_bytes
            top[begin] = part.temp_bytes
            if self._problem.training:
                change[turns - begin] -= part.saved_bytes
                change[turns - 1 - begin] += part.gradient_bytes
                top[turns - 1 - begin] = part.temp_bytes + max(0, part.upstream_bytes - received)
        for tensor in self._uploads:
            self._upload(tensor, device_of, place, changes)
        return [
            sums[0]
            + max(
                sums[3] + update_peak_bytes(sums[1], sums[2]),
                max(map(sum, zip(accumulate(change), top, strict=False)), default=0),
            )
            for sums, change, top in zip(always, changes, tops, strict=True)
        ]

    def _copies(
        self,
        size: int,
        consumers: Sequence[int],
        here: int,
        begin: int,
        device_of: Sequence[int],
        until: Sequence[int],
        changes: list[list[int]],
    ) -> int:
        """Copies of a tensor, from its maker's turn until they are read."""
        last: dict[int, int] = {}
        for reader in consumers:
            there = device_of[reader]
            last[there] = max(until[reader], last.get(there, 0))
        last.pop(here, None)
        for there, turn in last.items():
            changes[there][begin + 1] += size
            changes[there][turn + 1] -= size
        return 0

    def _copies_in_training(
        self,
        size: int,
        consumers: Sequence[int],
        here: int,
        begin: int,
        device_of: Sequence[int],
        until: Sequence[int],
        changes: list[list[int]],
    ) -> int:
        """Add copies kept until their gradients are sent back, and the gradients. Returns their bytes."""
        first: dict[int, int] = {}
        for reader in consumers:
            there = device_of[reader]
            first[there] = min(until[reader], first.get(there, until[reader]))
        first.pop(here, None)
        own, turns = changes[here], self._turns
        for there, turn in first.items():
            changes[there][begin + 1] += size
            changes[there][turns - turn] -= size
            own[turns - 1 - turn] += size
            own[turns - begin] -= size
        return size * len(first)

    def _upload(
        self, tensor: int, device_of: Sequence[int], place: Sequence[int], changes: list[list[int]]
    ) -> None:
        """Copies of inputs, on each device that reads them."""
        size, first = self._problem.indexed.size_bytes[tensor], dict[int, int]()
        for reader in self._problem.indexed.consumers[tensor]:
            there = device_of[reader]
            first[there] = min(place[reader], first.get(there, place[reader]))
        for there, turn in first.items():
            changes[there][0] += size
            if self._problem.training:
                changes[there][self._turns - turn] -= size

    def _held_until(self, place: Sequence[int]) -> list[int]:
        """By layer, the turn until which it holds its inputs: its own, or for a view its last consumer's."""
        indexed = self._problem.indexed
        until = list(place)
        for layer in reversed(range(len(indexed))):
            if indexed.is_view[layer]:
                until[layer] = self._last_read(layer, until)
        return until

    def _last_read(self, layer: int, until: Sequence[int]) -> int:
        """The last turn of forward in which a consumer or variable holds a layer's output."""
        indexed = self._problem.indexed
        readers = [until[reader] for tensor in indexed.makes[layer] for reader in indexed.consumers[tensor]]
        if layer in self._released_by:
            readers.append(max(until[layer], until[self._released_by[layer]]))
        return max(readers) if readers else len(indexed) - 1

    def _end(self, layer: int, device_of: Sequence[int], until: Sequence[int]) -> int:
        """The turn after which a layer's output is freed on its device; the end if no layer reads it."""
        indexed, here = self._problem.indexed, device_of[layer]
        if not indexed.makes[layer] and layer not in self._released_by:
            return self._turns - 1
        last = until[layer] if not indexed.is_view[layer] else 0
        if layer in self._released_by:
            last = max(last, until[self._released_by[layer]])
        for tensor in indexed.makes[layer]:
            for reader in indexed.consumers[tensor]:
                last = max(last, until[reader] if device_of[reader] == here else until[layer] + 1)
        return min(last, self._turns - 1)
