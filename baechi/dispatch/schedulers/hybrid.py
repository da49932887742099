"""Several devices at once, each with its own size of chunks."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from baechi.dispatch.schedulers.abstract import AbstractScheduler, Left, Share, at_most, whole_number
from baechi.dispatch.schedulers.earliest import Runner, earliest
from baechi.dispatch.schedulers.pace import Pace
from baechi.dispatch.schedulers.targets import DevicesLike, targets_of

_T = TypeVar("_T")


@dataclass(frozen=True)
class DeviceStatus:
    """What a policy sees of a device that has room for a chunk.

    Args:
        name: its name.
        load: items in flight.
        batch_size: items of its chunks.
        capacity: items that may be in flight.
        priority: as it was given.
        left: items that no device has taken.
    """

    name: str
    load: int
    batch_size: int
    capacity: int
    priority: float
    left: int


Policy = Literal["priority", "earliest_finish"] | Callable[[DeviceStatus], float]


class HybridScheduler(AbstractScheduler):
    """Gives chunks to several devices at once.

    A device has room while `load + batch_size <= capacity`. Each list below has an entry for each device, or
    one for all.

    Args:
        devices: a cluster, or a list of device names and plans. Two entries may not share a device.
        batch_sizes: the most items of a chunk.
        capacities: items in flight; the batch sizes unless given, so one chunk. Twice that lets the next
            chunk travel to the device while one computes.
        priorities: larger is earlier; equal unless given. Ties go to the first in the list.
        policy: `"priority"`: the device with room that has the highest priority. `"earliest_finish"`: what
            ends earliest, by the devices' paces; chunks may be smaller, and a slow device gets nothing that
            would end last. Or a function of a `DeviceStatus`: the highest score gets the chunk.
        pace_s: for `"earliest_finish"`, by device, seconds by number of items, as `baechi.tune_batch_size`
            measures; unless given, estimated where the device is described by a cluster, and measured as
            chunks end.

    Raises:
        RecordError: the devices cannot work beside each other.
        ValueError: a list has another length, a number is too small, or the policy is not known.
    """

    def __init__(
        self,
        devices: DevicesLike,
        batch_sizes: int | Sequence[int],
        capacities: int | Sequence[int] | None = None,
        priorities: float | Sequence[float] | None = None,
        policy: Policy = "priority",
        *,
        pace_s: Mapping[str, Mapping[int, float]] | None = None,
    ) -> None:
        super().__init__(targets_of(devices))
        names = tuple(self.load)
        if not callable(policy) and policy not in ("priority", "earliest_finish"):
            raise ValueError(f"there is no policy {policy!r}: 'priority', 'earliest_finish', or a function")
        self.policy = policy
        self.batch_sizes = dict(zip(names, spread(batch_sizes, len(names), "batch_sizes"), strict=True))
        given = list(self.batch_sizes.values()) if capacities is None else capacities
        self.capacities = dict(zip(names, spread(given, len(names), "capacities"), strict=True))
        given_priorities = 0.0 if priorities is None else priorities
        self.priorities = dict(zip(names, spread(given_priorities, len(names), "priorities"), strict=True))
        for name in names:
            size = whole_number(self.batch_sizes[name], f"the batch size of {name}", 1)
            if whole_number(self.capacities[name], f"the capacity of {name}", 1) < size:
                raise ValueError(
                    f"{name}: a capacity of {self.capacities[name]} is below its batch size of {size}, so it "
                    "would never get a chunk"
                )
        unknown = sorted(set(pace_s or {}) - set(names))
        if unknown:
            raise ValueError(f"pace_s names {', '.join(unknown)}: the devices are {', '.join(names)}")
        self.paces = {name: Pace(dict((pace_s or {}).get(name, {}))) for name in names}
        self._free_s = dict.fromkeys(names, 0.0)

    @property
    def depth(self) -> int:
        return sum([self.capacities[name] // self.batch_sizes[name] for name in self.load])

    @property
    def asks_for_paces(self) -> bool:
        """Whether estimates of paces would help."""
        return self.policy == "earliest_finish" and not all(self.paces.values())

    def _choose(self, left: Left) -> Share | None:
        if self.policy == "earliest_finish":
            return self._earliest(left)
        having = [self._status(name, left) for name in self.load if self._has_room(name)]
        if not having:
            return None
        score = self.policy if callable(self.policy) else lambda status: status.priority
        best = max(having, key=score)  # of equal ones the first
        return Share(best.name, at_most(left.items, best.batch_size, left.most))

    def _earliest(self, left: Left) -> Share | None:
        runners = [
            Runner(
                name,
                at_most(size, left.most),
                max(left.now_s, self._free_s[name] if self.chunks[name] else 0.0),
                self.paces[name],
                self._has_room(name),
                self.chunks[name],
            )
            for name, size in self.batch_sizes.items()
        ]
        found = earliest(runners, left.items)
        if found is None:
            return None
        name, items = found
        free_s = next(runner.free_s for runner in runners if runner.name == name)
        self._free_s[name] = free_s + (self.paces[name].seconds(items) if self.paces[name] else 0.0)
        return Share(name, items)

    def _has_room(self, name: str) -> bool:
        return self.load[name] + self.batch_sizes[name] <= self.capacities[name]

    def _status(self, name: str, left: Left) -> DeviceStatus:
        room = self.load[name], self.batch_sizes[name], self.capacities[name]
        return DeviceStatus(name, *room, self.priorities[name], left.items)

    def _learn(self, target: str, items: int, taken_s: float | None, now_s: float) -> None:
        if self.policy != "earliest_finish" or taken_s is None or not items:
            return
        self.paces[target].learn(items, taken_s)
        self._free_s[target] = now_s + (
            self.paces[target].seconds(self.load[target]) if self.load[target] else 0
        )


def spread(given: _T | Sequence[_T], count: int, what: str) -> list[_T]:
    """One value for each device."""
    values = list(given) if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    if len(values) == 1:
        return [values[0]] * count
    if len(values) != count:
        raise ValueError(f"{what} has {len(values)} entries for {count} devices")
    return values
