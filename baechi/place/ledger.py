"""Memory while placing: what is placed where, its bytes, and whether one more layer fits.

A placer knows the order in which each device runs its layers, but only estimates the times. So the
ledger is an upper bound that follows from the orders alone:

- permanent bytes of all groups placed on a device count all the time. So do the copies that it
  receives, and in training the gradients sent back to it;
- output that autograd does not save counts until its last consumer on the device has run, and the layer
  during which its variable goes. If that layer is on another device, or the output is sent or returned,
  it counts to the end;
- one layer at a time needs its transient bytes;
- in the optimizer's step only weights, gradients, optimizer state and its transient bytes count.

The peak that `baechi.simulate` finds for the same plan is never higher (`tests/place` checks it on
random graphs). A tensor that several layers of a device read arrives there once and counts once.
"""

from collections.abc import Sequence

from baechi.cost.indexed_graph import FROM_HOST
from baechi.cost.memory import update_peak_bytes
from baechi.place.group_bytes import GroupBytes
from baechi.place.problem import ANYWHERE, Problem


class _Updates:
    """The bytes that a device needs when the optimizer steps."""

    def __init__(self) -> None:
        self._resident_bytes = self._total_bytes = self._largest_bytes = 0

    def add(self, part: GroupBytes) -> None:
        """Add a group that is placed there."""
        self._resident_bytes += part.resident_bytes
        self._total_bytes += part.update_bytes
        self._largest_bytes = max(self._largest_bytes, part.largest_update_bytes)

    def needed_bytes(self, part: GroupBytes | None = None) -> int:
        """The bytes needed; with one more group, if one is given."""
        resident, total, largest = self._resident_bytes, self._total_bytes, self._largest_bytes
        if part is not None:
            resident, total = resident + part.resident_bytes, total + part.update_bytes
            largest = max(largest, part.largest_update_bytes)
        return resident + update_peak_bytes(total, largest)


class Ledger:
    """Records what is placed where, and counts its bytes. Layers, groups and devices are indexes.

    A placer asks before it acts: `place` and `run` do not check.

    Args:
        problem: what is to be placed.

    Attributes:
        device_of: by group, its device, or `ANYWHERE`.
    """

    def __init__(self, problem: Problem) -> None:
        indexed = problem.indexed
        self.device_of = [ANYWHERE] * len(indexed.members)
        self._problem = problem
        self._always_bytes = [0 for _ in problem.devices]
        self._live_bytes = [0 for _ in problem.devices]
        self._peak_bytes = [0 for _ in problem.devices]
        self._final_bytes = [0 for _ in problem.devices]
        self._backward_bytes = [0 for _ in problem.devices]
        self._updates = [_Updates() for _ in problem.devices]
        self._home = [problem.host if maker == FROM_HOST else ANYWHERE for maker in indexed.source]
        self._wanted = [0] * len(indexed.source)  # by tensor: devices that read it, as bits
        self._held = [sum([len(indexed.consumers[t]) for t in made]) for made in indexed.makes]
        self._named = {maker for makers in indexed.releases.values() for maker in makers}
        for makers in indexed.releases.values():
            for maker in makers:
                self._held[maker] += 2  # its variable, and the layer itself, which may run later
        self._asked = (ANYWHERE, ANYWHERE)  # (group, device) of the last fit test: `place` usually follows it
        self._answer: tuple[int, dict[int, int]] = (0, {})

    def needed_bytes(self, device: int) -> int:
        """The bytes that a device needs for all groups placed there and all layers run there."""
        backward = self._final_bytes[device] + self._backward_bytes[device]
        step_bytes = self._always_bytes[device] + max(self._peak_bytes[device], backward)
        return max(step_bytes, self._updates[device].needed_bytes())

    def slack_bytes(self, device: int) -> int:
        """The bytes that a device has left for the next layer that runs there."""
        used = self._always_bytes[device] + self._live_bytes[device]
        return self._problem.memory_bytes[device] - used

    def short_bytes(self, layer: int, device: int) -> int:
        """How many bytes are missing to run a layer next, and to hold its group."""
        group = self._problem.indexed.group_of[layer]
        running = self._live_bytes[device] + self._problem.footprints[layer].forward_bytes
        if self.device_of[group] == ANYWHERE:
            return self._group_short_bytes(group, device, running)
        needed = max(self.needed_bytes(device), self._always_bytes[device] + running)
        return needed - self._problem.memory_bytes[device]

    def group_short_bytes(self, group: int, device: int) -> int:
        """How many bytes are missing to place a group, counting only what its layers' order cannot change."""
        return self._group_short_bytes(group, device, 0)

    def place(self, group: int, device: int) -> None:
        """Put a group on a device."""
        part = self._problem.group_bytes[group]
        grown, others = self._growth(group, device)
        for other, more in others.items():
            self._always_bytes[other] += more
        self.device_of[group] = device
        self._always_bytes[device] += part.permanent_bytes + grown
        self._peak_bytes[device] = max(self._peak_bytes[device], part.forward_bytes)
        self._final_bytes[device] += part.final_bytes
        self._backward_bytes[device] = max(self._backward_bytes[device], part.backward_bytes)
        self._updates[device].add(part)
        for tensor in self._problem.group_reads[group]:
            self._wanted[tensor] |= 1 << device
        for tensor in self._problem.group_makes[group]:
            self._home[tensor] = device
        self._asked = (ANYWHERE, ANYWHERE)

    def run(self, layer: int) -> None:
        """Let a layer run next on the device of its group."""
        device = self.device_of[self._problem.indexed.group_of[layer]]
        footprint = self._problem.footprints[layer]
        running = self._live_bytes[device] + footprint.forward_bytes
        self._peak_bytes[device] = max(self._peak_bytes[device], running)
        self._live_bytes[device] += footprint.output_bytes
        if not self._problem.indexed.is_view[layer]:
            self._let_inputs_go(layer, device)
        for maker in self._no_longer_named(layer, device):
            if self._is_last(maker, device) and self._problem.indexed.is_view[maker]:
                self._let_inputs_go(maker, device)

    def _group_short_bytes(self, group: int, device: int, running_bytes: int) -> int:
        """How many bytes are missing on the device, or on another that the placement adds copies to."""
        part = self._problem.group_bytes[group]
        grown, others = self._growth(group, device)
        backward = max(self._backward_bytes[device], part.backward_bytes)
        top = max(
            running_bytes,
            part.forward_bytes,
            self._peak_bytes[device],
            self._final_bytes[device] + part.final_bytes + backward,
        )
        memory = self._problem.memory_bytes
        own_bytes = self._always_bytes[device] + grown + part.permanent_bytes + top
        own = max(own_bytes, self._updates[device].needed_bytes(part)) - memory[device]
        if not others:
            return own
        return max(own, *[self.needed_bytes(other) + more - memory[other] for other, more in others.items()])

    def _no_longer_named(self, layer: int, device: int) -> list[int]:
        """The layers whose variables end with a layer, as far as they run on the same device."""
        indexed = self._problem.indexed
        makers = [m for m in indexed.releases.get(layer, ()) if self.device_of[indexed.group_of[m]] == device]
        return [*makers, layer] if layer in self._named else makers

    def _let_inputs_go(self, reader: int, device: int) -> None:
        """Free outputs on the device that were read for the last time, and bases that only views held."""
        indexed = self._problem.indexed
        done = [reader]
        while done:
            for tensor in indexed.reads[done.pop()]:
                maker = indexed.source[tensor]
                if self._home[tensor] == device and self._is_last(maker, device) and indexed.is_view[maker]:
                    done.append(maker)

    def _is_last(self, maker: int, device: int) -> bool:
        """Release one hold on a layer's output. If it was the last, free the output."""
        self._held[maker] -= 1
        if self._held[maker]:
            return False
        self._live_bytes[device] -= self._problem.footprints[maker].output_bytes
        return True

    def _growth(self, group: int, device: int) -> tuple[int, dict[int, int]]:
        """Bytes of copies and returned gradients that placing a group adds: on its device, and on others."""
        if self._asked == (group, device):
            return self._answer
        problem, bit, sizes = self._problem, 1 << device, self._problem.indexed.size_bytes
        here, elsewhere = 0, dict[int, int]()
        for tensor in problem.group_reads[group]:
            home = self._home[tensor]
            if home in (ANYWHERE, device) or self._wanted[tensor] & bit:
                continue
            here += problem.indexed.copy_bytes[tensor]
            if home != problem.host and problem.training:
                elsewhere[home] = elsewhere.get(home, 0) + sizes[tensor]
        for tensor in problem.group_makes[group]:
            others = self._wanted[tensor] & ~bit
            while others:
                other = others.bit_length() - 1
                others ^= 1 << other
                elsewhere[other] = elsewhere.get(other, 0) + problem.indexed.copy_bytes[tensor]
                here += sizes[tensor] * problem.training
        self._asked, self._answer = (group, device), (here, elsewhere)
        return self._answer


def open_ledger(problem: Problem, device_of: Sequence[int] = ()) -> Ledger:
    """A ledger in which nothing has run."""
    ledger = Ledger(problem)
    for group, device in enumerate(device_of or problem.pins):
        if device != ANYWHERE:
            ledger.place(group, device)
    return ledger
