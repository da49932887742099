"""What follows the list of tasks: results are joined and fetched, and `backward()` hands gradients over.

last task ─▶ losses weighted and added, outputs put together ─▶ to the host ─▶ the gradient of the loss
          ─▶ to every device ─▶ the gradients there times it

Over ranks results stay, and each rank has the gradient of the loss: its host multiplies its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from baechi.cost.transfer import transfer_s
from baechi.records.cluster import Cluster
from baechi.records.device import Link

_SCALAR_BYTES = 8
"""A loss is no larger."""

_JOIN_PASSES, _SCALE_PASSES = 2, 2
"""Both read and write what they work on."""


@dataclass(frozen=True)
class Closing:
    """What it takes.

    Args:
        cluster: the devices.
        links: the links between them; the host's index is that after the last.
        launch_s: what the host takes for a kernel or a transfer.
        transfer_s: what the runtime takes beside that for a transfer.
        returned: what the model returns: `(device, bytes of one microbatch, whether backward begins there)`.
        fetches: whether results go to the host.
        gradients: by device, bytes of gradients that are handed over.
    """

    cluster: Cluster
    links: Sequence[Sequence[Link]]
    launch_s: float
    transfer_s: float
    returned: Sequence[tuple[int, int, bool]]
    fetches: bool
    gradients: Sequence[int]

    def end_s(
        self, microbatches: int, hosts_s: Sequence[float], free_s: Sequence[float]
    ) -> tuple[float, list[float]]:
        """When all is over, and for how long each rank's host works at it."""
        walk = _Walk(self, list(hosts_s), list(free_s))
        for device, size_bytes, _ in self.returned:
            walk.join(device, size_bytes, microbatches)
        losses = [device for device, size_bytes, starts in self.returned if starts and _is_scalar(size_bytes)]
        if losses:
            walk.hand_over(losses[0])
        return max([*walk.hosts_s, *walk.free_s]), walk.worked_s


class _Walk:
    def __init__(self, closing: Closing, hosts_s: list[float], free_s: list[float]) -> None:
        self.hosts_s, self.free_s, self.worked_s = hosts_s, free_s, [0.0] * len(hosts_s)
        self._closing, self._host = closing, len(closing.cluster)
        self._ranks = closing.cluster.ranks or (0,) * len(closing.cluster)

    def join(self, device: int, size_bytes: int, microbatches: int) -> None:
        """A scalar is weighted and added, a tensor put together; the host waits for the result."""
        is_sum = _is_scalar(size_bytes)
        whole, rank = size_bytes if is_sum else microbatches * size_bytes, self._ranks[device]
        self._work(rank, (2 * microbatches - 1 if is_sum else 1) * self._closing.launch_s)
        self._run(device, self.hosts_s[rank], _JOIN_PASSES * whole)
        if self._closing.fetches:
            self._work(rank, self._closing.launch_s + self._closing.transfer_s)
            sent_s = max(self.hosts_s[rank], self.free_s[device])
            self.hosts_s[rank] = sent_s + transfer_s(self._closing.links[device][self._host], whole)

    def hand_over(self, device: int) -> None:
        """The threads of all devices send for the gradient of the loss, and multiply theirs by it."""
        source, is_ranked = self._host if self._closing.fetches else device, bool(self._closing.cluster.ranks)
        host_s = self.hosts_s[self._ranks[device]]
        begin_s = host_s if self._closing.fetches else max(host_s, self.free_s[device])
        for target, size_bytes in enumerate(self._closing.gradients):
            if size_bytes:
                rank = self._ranks[target]
                there_s = self.hosts_s[rank] if is_ranked else begin_s
                if target != source and not is_ranked:
                    sending_s = self._closing.launch_s + self._closing.transfer_s
                    there_s += sending_s + transfer_s(self._closing.links[source][target], _SCALAR_BYTES)
                    self.worked_s[rank] += sending_s
                self.worked_s[rank] += self._closing.launch_s
                self._run(target, there_s, _SCALE_PASSES * size_bytes)

    def _work(self, rank: int, seconds: float) -> None:
        self.hosts_s[rank] += seconds
        self.worked_s[rank] += seconds

    def _run(self, device: int, ready_s: float, moved_bytes: int) -> None:
        rate = self._closing.cluster.devices[device].bytes_per_s
        self.free_s[device] = max(self.free_s[device], ready_s) + (moved_bytes / rate if rate else 0.0)


def _is_scalar(size_bytes: int) -> bool:
    return size_bytes <= _SCALAR_BYTES
