"""The order in which the layers of a plan really launch, over all devices.

The host runs the model's code. A layer launches where the host reaches it, if it is its turn on its
device and all its inputs have launched. Otherwise it waits, and launches right after the launch that it
waited for. Glue has no turn: it waits for its inputs only. The runtime keeps this order (`baechi.order`);
on each device it is the plan's order, except for glue.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from baechi.cost.indexed_graph import FROM_HOST, IndexedGraph


class LaunchOrder(NamedTuple):
    """The order of launches.

    Args:
        places: by layer, its place in it.
        waited: by place, how many layers and functional ops began to wait since the launch before.
        awaited: by place, the layers whose values the host waits for since the launch before.
    """

    places: Sequence[int]
    waited: Mapping[int, int]
    awaited: Mapping[int, Sequence[int]]


def launch_order(
    indexed: IndexedGraph, has_no_turn: Sequence[bool], device_of: Sequence[int], place: Sequence[int]
) -> LaunchOrder:
    """The order in which layers launch."""
    last = [-1] * (max(device_of, default=0) + 1)
    in_code_order = True
    for layer, device in enumerate(device_of):
        if not has_no_turn[layer]:
            in_code_order &= last[device] < place[layer]
            last[device] = place[layer]
    if in_code_order:  # no layer waits
        return LaunchOrder(range(len(place)), {}, indexed.awaited)
    launches = _Launches(indexed, has_no_turn, device_of, place)
    return LaunchOrder(launches.walk(), launches.waited, launches.awaited)


class _Launches:
    """Replays the host's walk through the code.

    Args:
        indexed, has_no_turn, device_of, place: as for `launch_places`.
    """

    def __init__(
        self,
        indexed: IndexedGraph,
        has_no_turn: Sequence[bool],
        device_of: Sequence[int],
        place: Sequence[int],
    ) -> None:
        self._indexed = indexed
        self._after: list[int] = [-1] * len(place)  # the next layer on the same device
        self._turn = list(has_no_turn)  # whether it is its turn
        last: dict[int, int] = {}
        for layer in sorted(range(len(place)), key=place.__getitem__):
            if not has_no_turn[layer]:
                before = last.get(device_of[layer])
                if before is None:
                    self._turn[layer] = True
                else:
                    self._after[before] = layer
                last[device_of[layer]] = layer
        self.waited: dict[int, int] = {}
        self.awaited: dict[int, list[int]] = {}
        self._place = [-1] * len(place)
        self._launched = 0
        self._missing: dict[int, int] = {}  # by waiting layer: inputs and turn that it still lacks
        self._followers: dict[int, list[int]] = {}
        self._ready: deque[int] = deque()

    def walk(self) -> list[int]:
        """By layer, its place in the order of launches."""
        source, place = self._indexed.source, self._place
        for layer, reads in enumerate(self._indexed.reads):
            if layer in self._indexed.awaited:
                self.awaited.setdefault(self._launched, []).extend(self._indexed.awaited[layer])
            makers = {source[tensor] for tensor in reads}
            makers.update(self._indexed.before[layer])
            needs = [maker for maker in makers if maker != FROM_HOST and place[maker] < 0]
            missing = len(needs) + (not self._turn[layer])
            if missing:
                self._missing[layer] = missing
                self.waited[self._launched] = self.waited.get(self._launched, 0) + 1
                for need in needs:
                    self._followers.setdefault(need, []).append(layer)
                continue
            self._launch(layer)
            while self._ready:
                self._launch(self._ready.popleft())
        return place

    def _launch(self, layer: int) -> None:
        self._place[layer] = self._launched
        self._launched += 1
        following = self._after[layer]
        if following >= 0:
            self._turn[following] = True
            self._less_missing(following)
        for follower in self._followers.pop(layer, ()):
            self._less_missing(follower)

    def _less_missing(self, layer: int) -> None:
        if layer in self._missing:  # else the host has not reached it
            self._missing[layer] -= 1
            if not self._missing[layer]:
                del self._missing[layer]
                self._ready.append(layer)
