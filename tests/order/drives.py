"""Random orders, and a drive of `Turns` as the runtime does it, without torch."""

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from random import Random

from baechi.order import LaunchOrder
from baechi.order.turns import Turns


def random_launch_order(chance: Random, layers: int = 9, devices: int = 3) -> LaunchOrder:
    """A random DAG, each layer on a random device, with a random plan's order and a random code order."""
    names = [f"l{index}" for index in range(chance.randint(1, layers))]
    density = chance.choice([0.0, 0.15, 0.3, 0.6])
    parents = {
        name: tuple([other for other in names[:index] if chance.random() < density])
        for index, name in enumerate(names)
    }
    used = chance.randint(1, devices)
    device_of = {name: f"d{chance.randrange(used)}" for name in names}
    order = random_topological(chance, parents)
    first = random_first(chance, device_of, order) if chance.random() < 0.3 else {}
    return LaunchOrder(device_of, order, parents, random_topological(chance, parents), first)


def random_first(
    chance: Random, device_of: dict[str, str], order: tuple[str, ...]
) -> dict[str, tuple[str, ...]]:
    """One device is the host: some of its layers let layers of others go first, all in one order."""
    first: dict[str, tuple[str, ...]] = {}
    for place, layer in enumerate(order):
        others = [other for other in order[:place] if device_of[other] != "d0" and chance.random() < 0.5]
        if device_of[layer] == "d0" and others:
            first[layer] = tuple(others)
    return first


def random_topological(chance: Random, parents: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    """All names in a random order, each after its parents."""
    left, order = list(parents), []
    while left:
        done = set(order)
        ready = [name for name in left if done.issuperset(parents[name])]
        order.append(chance.choice(ready))
        left.remove(order[-1])
    return tuple(order)


def some(chance: Random, layers: Iterable[str]) -> list[str]:
    """Some of these layers, often all, in their order."""
    share = chance.choice([0.0, 0.0, 0.2, 0.5])
    return [layer for layer in layers if chance.random() >= share]


@dataclass(eq=False)
class _Waiting:
    layer: str
    needs: "list[_Waiting]"
    missing: int
    followers: "list[_Waiting]" = field(default_factory=list)


class Drive:
    """One step: what a schedule and a launcher do with `Turns`, and nothing else.

    Args:
        order: the plan's order, and the code's.
        values: layers whose value the code wants right after it reached them.
    """

    def __init__(self, order: LaunchOrder, values: Collection[str] = ()) -> None:
        self._order = order
        self._values = values
        self._turns = Turns(order)
        self._ready: deque[_Waiting] = deque()
        self._turnless: dict[str, _Waiting] = {}
        self.waiting: dict[str, _Waiting] = {}
        self.waited: list[str] = []
        self.forced: list[str] = []
        self.launched: list[str] = []

    def run(self, code: Iterable[str]) -> "Drive":
        """The code reaches these layers, in this order, and ends."""
        for layer in code:
            self._reach(layer)
            if layer in self._values and layer in self.waiting:
                self._force(self.waiting[layer])
        self._wake(self._turns.end())
        self._drain()
        return self

    def launched_on(self, device: str) -> list[str]:
        """What a device launched, in order."""
        return [layer for layer in self.launched if self._order.device_of[layer] == device]

    def _reach(self, layer: str) -> None:
        turn = self._turns.reach(layer)
        if not self.waiting and turn:
            self._launch(layer)
            return
        self._wake(self._turns.skip())
        self._drain()
        turn = turn or self._turns.is_up(layer)
        needs = [self.waiting[parent] for parent in self._order.parents[layer] if parent in self.waiting]
        if turn and not needs:
            self._launch(layer)
            self._drain()
            return
        task = _Waiting(layer, needs, len(needs) + (not turn))
        for need in needs:
            need.followers.append(task)
        self.waiting[layer] = task
        if not turn:
            self._turnless[layer] = task
        self.waited.append(layer)

    def _force(self, wanted: _Waiting) -> None:
        closure, stack = {wanted.layer}, [wanted]
        while stack:
            stack += stack.pop().needs
            closure |= {need.layer for need in stack if need.layer in self.waiting}
        for layer in [layer for layer in self.waited if layer in closure]:
            self.forced.append(layer)
            self._launch_waiting(self.waiting[layer])
        self._drain()

    def _launch_waiting(self, task: _Waiting) -> None:
        del self.waiting[task.layer]
        self._launch(task.layer)
        for follower in task.followers:
            self._less_missing(follower)

    def _launch(self, layer: str) -> None:
        self.launched.append(layer)
        self._wake(self._turns.launch(layer))

    def _wake(self, layers: Iterable[str]) -> None:
        for layer in layers:
            task = self._turnless.pop(layer, None)
            if task is not None:
                self._less_missing(task)

    def _less_missing(self, task: _Waiting) -> None:
        task.missing -= 1
        if not task.missing:
            self._ready.append(task)

    def _drain(self) -> None:
        while self._ready:
            task = self._ready.popleft()
            if task.layer in self.waiting:
                self._launch_waiting(task)
