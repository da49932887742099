"""What estimates look up: seconds, ways and bounds of a task, worked out once."""

from collections.abc import Sequence

from baechi.cost.indexed import FROM_HOST, seconds_by_device
from baechi.cost.machine import last_part
from baechi.cost.transfer import transfer_s
from baechi.place.task import Task


class Tables:
    """A task, ready for estimates. Phase 0 is forward, phase 1 backward.

    Args:
        task: what is placed.
    """

    def __init__(self, task: Task) -> None:
        indexed, graph = task.indexed, task.graph
        phases = ("forward", "backward") if task.training else ("forward",)
        devices, names = task.cluster.devices, indexed.names
        self.task = task
        self.layers = len(indexed)
        self.seconds = [seconds_by_device(graph, names, devices, f"{phase}_s") for phase in phases]
        self.host_s = [[graph.amount(name, f"host_{phase}_s") for name in names] for phase in phases]
        self.launch_s = [task.cluster.launch_s if any(host_s) else 0.0 for host_s in self.host_s]
        self.last_part = [
            [last_part(s, launch_s) for s in host_s]
            for host_s, launch_s in zip(self.host_s, self.launch_s, strict=True)
        ]
        self.makes = [[(tensor, indexed.consumers[tensor]) for tensor in made] for made in indexed.makes]
        uploaded = [tensor for tensor, maker in enumerate(indexed.source) if maker == FROM_HOST]
        self.uploads = [(tensor, indexed.consumers[tensor]) for tensor in uploaded]
        self.returned = [
            (maker, is_loss, _ways_s(task, size_bytes)) for maker, size_bytes, is_loss in indexed.returned
        ]
        self.missing = [
            sum([indexed.source[tensor] != FROM_HOST for tensor in reads]) + len(before)
            for reads, before in zip(indexed.reads, indexed.before, strict=True)
        ]
        self.travel_s = _travel_s(task)
        ends = len(task.cluster) + 1
        self.stride = ends if task.cluster.reception == "free" else 0  # as in `baechi.cost.channel`
        self.channels = ends * ends if self.stride else ends
        self.to_end_s = [_to_end_s(task, self.seconds[0]), _to_end_of_backward_s(task, self.seconds[-1])]

    def work_s(self, phase: int, device_of: Sequence[int]) -> list[float]:
        """The work of each device.

        Args:
            phase: which.
            device_of: by layer, its device.
        """
        seconds = self.seconds[phase]
        work_s = [0.0 for _ in seconds]
        for layer, device in enumerate(device_of):
            work_s[device] += seconds[device][layer]
        return work_s


def _travel_s(task: Task) -> list[list[list[float]]]:
    """By source, target and tensor; equal links share their list."""
    sizes, links = task.indexed.size_bytes, {link for row in task.links for link in row}
    known = {link: [transfer_s(link, size) for size in sizes] for link in links}
    return [[known[link] for link in row] for row in task.links]


def _ways_s(task: Task, size_bytes: int) -> list[tuple[float, float]]:
    """By device, how long bytes travel to the host, and from there."""
    return [
        (
            transfer_s(task.links[device][task.host], size_bytes),
            transfer_s(task.links[task.host][device], size_bytes),
        )
        for device in range(len(task.cluster))
    ]


def _to_end_s(task: Task, seconds: Sequence[Sequence[float]]) -> list[float]:
    """By layer, what passes at least from its start to the end of forward, however it is placed."""
    indexed = task.indexed
    left_s = [0.0] * len(indexed)
    for layer in reversed(range(len(indexed))):
        after = [left_s[reader] for tensor in indexed.makes[layer] for reader in indexed.consumers[tensor]]
        left_s[layer] = min([row[layer] for row in seconds]) + max(after, default=0.0)
    return left_s


def _to_end_of_backward_s(task: Task, seconds: Sequence[Sequence[float]]) -> list[float]:
    """By layer, the same of backward, which ends where forward begins."""
    indexed = task.indexed
    left_s = [0.0] * len(indexed)
    for layer in range(len(indexed)):
        makers = [indexed.source[tensor] for tensor in indexed.reads[layer]]
        after = [left_s[maker] for maker in makers if maker != FROM_HOST]
        left_s[layer] = min([row[layer] for row in seconds]) + max(after, default=0.0)
    return left_s
