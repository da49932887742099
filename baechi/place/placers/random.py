"""Random devices and a random order: for tests that any plan computes the same, and as a baseline."""

from dataclasses import dataclass
from random import Random

from baechi.place.ledger import Ledger, open_ledger
from baechi.place.listing.walk import walk
from baechi.place.placers.rescue import rescue
from baechi.place.problem import ANYWHERE, Problem
from baechi.records import Cluster, LayerGraph, Plan


@dataclass(frozen=True)
class RandomPlacer:
    """Puts each group on a random device, and uses every device if there are enough groups.

    Functional ops that may lie by themselves do.

    Args:
        seed: equal seeds give equal plans.
    """

    seed: int

    def __call__(self, graph: LayerGraph, cluster: Cluster, *, optimizer: str | None = None) -> Plan:
        """Place at random, within memory; see `Placer`."""
        problem = Problem(graph, cluster, optimizer, apart=True)
        ledger = open_ledger(problem)
        chance = Random(self.seed)
        _cover(problem, ledger, chance)

        def choose(layer: int) -> int | None:
            devices = chance.sample(problem.devices, len(problem.devices))
            return next((d for d in devices if ledger.short_bytes(layer, d) <= 0), None)

        stuck = walk(problem, ledger, choose)
        if stuck is not None:
            return rescue(problem, f"random:{self.seed}", stuck)
        return problem.plan(f"random:{self.seed}", ledger.device_of, _shuffled(problem, chance))


def _cover(problem: Problem, ledger: Ledger, chance: Random) -> None:
    """Put a random group on each device that has no pinned group, small devices first.

    Groups with a layer come first. A group of functional ops (glue) on model inputs runs where the inputs
    lie, so its device would stay idle.
    """
    groups = [group for group, device in enumerate(ledger.device_of) if device == ANYWHERE]
    chance.shuffle(groups)
    groups.sort(key=lambda group: not _has_layer(problem, group))
    for device in sorted(problem.devices, key=problem.memory_bytes.__getitem__):
        if device in problem.pins:
            continue
        fitting = (group for group in groups if ledger.group_short_bytes(group, device) <= 0)
        group = next(fitting, None)
        if group is not None:
            groups.remove(group)
            ledger.place(group, device)


def _shuffled(problem: Problem, chance: Random) -> list[int]:
    """All layers in a random topological order."""
    number = {name: index for index, name in enumerate(problem.indexed.names)}
    followers = [
        [number[follower] for follower in problem.graph.successors(name)] for name in problem.indexed.names
    ]
    missing = [0] * len(number)
    for follower in (follower for found in followers for follower in found):
        missing[follower] += 1
    ready = [layer for layer, count in enumerate(missing) if not count]
    order: list[int] = []
    while ready:
        place = chance.randrange(len(ready))
        ready[place], ready[-1] = ready[-1], ready[place]
        order.append(ready.pop())
        for follower in followers[order[-1]]:
            missing[follower] -= 1
            if not missing[follower]:
                ready.append(follower)
    return order


def _has_layer(problem: Problem, group: int) -> bool:
    return any(problem.indexed.costs[layer].kind == "layer" for layer in problem.indexed.members[group])
