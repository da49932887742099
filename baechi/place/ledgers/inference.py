"""Memory while placing for inference: outputs are allocated and freed, so the ledger tracks lifetimes.

A turn is the running of one layer, in the order of placing. Weights stay. An output lives from its layer's
turn until all its consumers have run. A copy on another device lives from the turn after its producer
until then. A view holds its base. An output without consumers stays. Copies of inputs stay, too.

Devices do not wait for each other's turns, so this is an estimate if their clocks run far apart. The
caller of a placer checks the plan with `baechi.simulate`.
"""

from baechi.cost.indexed import FROM_HOST
from baechi.place.ledgers.level import Level
from baechi.place.task import ANYWHERE, Task


class InferenceLedger:
    """The ledger of a graph without backward; see `Ledger`.

    Args:
        task: what is to be placed.
    """

    def __init__(self, task: Task) -> None:
        indexed = task.indexed
        self.device_of = [ANYWHERE] * len(indexed.members)
        self._task = task
        self._weights_bytes = [0 for _ in task.devices]
        self._reserved_bytes = [0 for _ in task.devices]
        self._levels = [Level() for _ in task.devices]
        self._turn = 0
        self._since = [0] * len(indexed.source)  # by tensor: the turn after which it can be copied
        self._on = [0] * len(indexed.source)  # by tensor: devices that have it, as bits
        self._unread = [len(readers) for readers in indexed.consumers]
        self._unread_of = [len(made) for made in indexed.makes]
        self._named = {maker for makers in indexed.lets_go.values() for maker in makers}
        for makers in indexed.lets_go.values():
            for maker in makers:
                self._unread_of[maker] += 2  # its variable, and the layer itself, which may run later

    def needed_bytes(self, device: int) -> int:
        """See `Ledger`."""
        level = max(self._levels[device].highest_bytes, self._reserved_bytes[device])
        return self._weights_bytes[device] + level

    def slack_bytes(self, device: int) -> int:
        """See `Ledger`."""
        used = self._weights_bytes[device] + self._levels[device].now_bytes
        return self._task.memory_bytes[device] - used

    def short_bytes(self, layer: int, device: int) -> int:
        """See `Ledger`."""
        group = self._task.indexed.group_of[layer]
        weights = self._weights_bytes[device]
        highest = max(self._levels[device].highest_bytes, self._level_with(layer, device))
        if self.device_of[group] == ANYWHERE:
            part = self._task.group_bytes[group]
            weights += part.permanent_bytes
            highest = max(highest, part.forward_bytes)
        return weights + max(highest, self._reserved_bytes[device]) - self._task.memory_bytes[device]

    def group_short_bytes(self, group: int, device: int) -> int:
        """See `Ledger`."""
        part = self._task.group_bytes[group]
        level = max(self._levels[device].highest_bytes, self._reserved_bytes[device], part.forward_bytes)
        needed = self._weights_bytes[device] + part.permanent_bytes + level
        return needed - self._task.memory_bytes[device]

    def place(self, group: int, device: int) -> None:
        """See `Ledger`."""
        part = self._task.group_bytes[group]
        self.device_of[group] = device
        self._weights_bytes[device] += part.permanent_bytes
        self._reserved_bytes[device] = max(self._reserved_bytes[device], part.forward_bytes)

    def run(self, layer: int) -> None:
        """See `Ledger`."""
        indexed = self._task.indexed
        device = self.device_of[indexed.group_of[layer]]
        level, footprint = self._levels[device], self._task.footprints[layer]
        for since, tensor in self._absent(layer, device):
            level.raise_since(since, indexed.size_bytes[tensor])
            self._on[tensor] |= 1 << device
        self._turn += 1
        level.mark(self._turn, footprint.forward_bytes)
        level.now_bytes += footprint.output_bytes
        for tensor in indexed.makes[layer]:
            self._since[tensor] = self._turn + 1
            self._on[tensor] = 1 << device
        if not indexed.borrows[layer]:
            self._let_inputs_go(layer)
        for maker in (*indexed.lets_go.get(layer, ()), *([layer] if layer in self._named else [])):
            if self._last_of(maker) and indexed.borrows[maker]:
                self._let_inputs_go(maker)

    def _absent(self, layer: int, device: int) -> list[tuple[int, int]]:
        """The tensors that must be copied to a device for a layer, oldest first: (since, tensor)."""
        reads = self._task.indexed.reads[layer]
        absent = [(self._since[t], t) for t in reads if not self._on[t] >> device & 1]
        return sorted(absent) if len(absent) > 1 else absent

    def _level_with(self, layer: int, device: int) -> int:
        """The peak if the layer ran next, with its copies sent as early as possible."""
        level, copied, highest = self._levels[device], 0, 0
        for since, tensor in self._absent(layer, device):
            copied += self._task.indexed.size_bytes[tensor]
            highest = max(highest, level.highest_since(since) + copied)
        running = level.now_bytes + copied + self._task.footprints[layer].forward_bytes
        return max(highest, running)

    def _let_inputs_go(self, reader: int) -> None:
        """Free outputs that were read for the last time, and the bases that only freed views held."""
        indexed = self._task.indexed
        done = [reader]
        while done:
            for tensor in indexed.reads[done.pop()]:
                self._unread[tensor] -= 1
                maker = indexed.source[tensor]
                if self._unread[tensor] == 0 and maker != FROM_HOST:
                    self._free_copies(tensor)
                    if self._last_of(maker) and indexed.borrows[maker]:
                        done.append(maker)

    def _free_copies(self, tensor: int) -> None:
        """Free a tensor everywhere but where it was made."""
        indexed = self._task.indexed
        home = self.device_of[indexed.group_of[indexed.source[tensor]]]
        copies = self._on[tensor] & ~(1 << home)
        while copies:
            device = copies.bit_length() - 1
            copies ^= 1 << device
            self._levels[device].now_bytes -= indexed.size_bytes[tensor]

    def _last_of(self, maker: int) -> bool:
        """Free a layer's output, if its last tensor was released."""
        self._unread_of[maker] -= 1
        if self._unread_of[maker]:
            return False
        device = self.device_of[self._task.indexed.group_of[maker]]
        self._levels[device].now_bytes -= self._task.footprints[maker].output_bytes
        return True
