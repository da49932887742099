"""Memory while placing: what each device will need, whatever the timing of the step turns out to be.

A placer learns the order in which each device runs its layers, and only guesses the times. So the
ledger promises what follows from the orders alone:

- permanent bytes of all groups placed on a device, and the copies that it receives, are there from
  the beginning to the end; so are, in training, the gradients that come back to it from others;
- output made on a device is there until the last layer there that reads it has run; output that is
  sent away, or that nobody reads, stays (when a transfer ends is a matter of timing);
- one layer at a time needs its temporary bytes.

The peak that `simulate` finds for the same plan is never above this (`tests/place` prove it on
random graphs). A tensor that several layers of a device read arrives there once and counts once.
"""

from collections.abc import Sequence

from baechi.cost.indexed import FROM_HOST
from baechi.place.task import ANYWHERE, Task


class Ledger:
    """Who is placed where, and the bytes that follow.

    Args:
        task: what is to be placed; its pinned groups are placed at once, whether they fit or not.
        device_of: by group, where to place it at once; `ANYWHERE` leaves it open.
    """

    def __init__(self, task: Task, device_of: Sequence[int] = ()) -> None:
        devices, indexed = len(task.cluster), task.indexed
        self.task = task
        self.device_of = [ANYWHERE] * len(indexed.members)
        self.always_bytes = [0] * devices
        self.live_bytes = [0] * devices
        self._peak_bytes = [0] * devices
        self._final_bytes = [0] * devices
        self._backward_bytes = [0] * devices
        self._home = [task.host if maker == FROM_HOST else ANYWHERE for maker in indexed.source]
        self._wanted = [0] * len(indexed.source)  # by tensor: devices that read it, as bits
        self._unread = [sum([len(indexed.consumers[t]) for t in made]) for made in indexed.makes]
        for group, device in enumerate(device_of or task.pins):
            if device != ANYWHERE:
                self.place(group, device)

    def needed_bytes(self, device: int) -> int:
        """What a device needs for all that is placed there.

        Args:
            device: a device.
        """
        return self.always_bytes[device] + max(
            self._peak_bytes[device], self._final_bytes[device] + self._backward_bytes[device]
        )

    def slack_bytes(self, device: int) -> int:
        """What a device has left for the next layer that runs there.

        Args:
            device: a device.
        """
        return self.task.memory_bytes[device] - self.always_bytes[device] - self.live_bytes[device]

    def short_bytes(self, layer: int, device: int) -> int:
        """How many bytes are missing to run a layer next, with all of its group on the device.

        Args:
            layer: a layer that has not run.
            device: where it would run; if its group is placed, where that is.

        Returns:
            Above 0: it does not fit. Otherwise, what would be left.
        """
        group = self.task.indexed.group_of[layer]
        running = self.live_bytes[device] + self.task.footprints[layer].forward_bytes
        if self.device_of[group] == ANYWHERE:
            return self.group_short_bytes(group, device, running)
        needed = max(self.needed_bytes(device), self.always_bytes[device] + running)
        return needed - self.task.memory_bytes[device]

    def group_short_bytes(self, group: int, device: int, running_bytes: int = 0) -> int:
        """How many bytes are missing to place a group, here or where it makes others grow.

        Args:
            group: a group that is not placed.
            device: where it would lie.
            running_bytes: what comes on top of all permanent bytes while its first layer runs.

        Returns:
            Above 0: it does not fit. Otherwise, what would be left.
        """
        part = self.task.group_bytes[group]
        grown = self._growth(group, device)
        backward = max(self._backward_bytes[device], part.backward_bytes)
        own = self.always_bytes[device] + grown.pop(device) + part.permanent_bytes
        own += max(
            running_bytes,
            part.forward_bytes,
            self._peak_bytes[device],
            self._final_bytes[device] + part.final_bytes + backward,
        )
        memory = self.task.memory_bytes
        others = [self.needed_bytes(other) + more - memory[other] for other, more in grown.items()]
        return max(own - memory[device], *others) if others else own - memory[device]

    def place(self, group: int, device: int) -> None:
        """Put a group on a device.

        Args:
            group: a group that is not placed.
            device: where it lies from now on.
        """
        part = self.task.group_bytes[group]
        for other, more in self._growth(group, device).items():
            self.always_bytes[other] += more
        self.device_of[group] = device
        self.always_bytes[device] += part.permanent_bytes
        self._peak_bytes[device] = max(self._peak_bytes[device], part.forward_bytes)
        self._final_bytes[device] += part.final_bytes
        self._backward_bytes[device] = max(self._backward_bytes[device], part.backward_bytes)
        for tensor in self.task.group_reads[group]:
            self._wanted[tensor] |= 1 << device
        for tensor in self.task.group_makes[group]:
            self._home[tensor] = device

    def run(self, layer: int) -> None:
        """Let a layer run next on the device of its group.

        Args:
            layer: a layer whose group is placed.
        """
        device = self.device_of[self.task.indexed.group_of[layer]]
        footprint = self.task.footprints[layer]
        running = self.live_bytes[device] + footprint.forward_bytes
        self._peak_bytes[device] = max(self._peak_bytes[device], running)
        self.live_bytes[device] += footprint.output_bytes
        if not self.task.indexed.borrows[layer]:
            self._let_inputs_go(layer, device)

    def _let_inputs_go(self, layer: int, device: int) -> None:
        """Free output on the device that was read for the last time; through views, what they view."""
        indexed = self.task.indexed
        done = [layer]
        while done:
            for tensor in indexed.reads[done.pop()]:
                if self._home[tensor] != device:
                    continue
                maker = indexed.source[tensor]
                self._unread[maker] -= 1
                if self._unread[maker] == 0:
                    self.live_bytes[device] -= self.task.footprints[maker].output_bytes
                    if indexed.borrows[maker]:
                        done.append(maker)

    def _growth(self, group: int, device: int) -> dict[int, int]:
        """By device: bytes of copies, and of gradients coming back, if the group were placed there."""
        task, bit = self.task, 1 << device
        grown = {device: 0}
        for tensor in task.group_reads[group]:
            home, size = self._home[tensor], task.indexed.size_bytes[tensor]
            if home in (ANYWHERE, device) or self._wanted[tensor] & bit:
                continue
            grown[device] += size
            if task.training and home != task.host:
                grown[home] = grown.get(home, 0) + size
        for tensor in task.group_makes[group]:
            others, size = self._wanted[tensor] & ~bit, task.indexed.size_bytes[tensor]
            while others:
                other = others.bit_length() - 1
                others ^= 1 << other
                grown[other] = grown.get(other, 0) + size
                grown[device] += size if task.training else 0
        return grown
