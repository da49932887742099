"""Place layers in topological order, each on the device that a callback chooses.

All placers that ignore time use it. Code order is topological, so the plan's layers run in the order in
which the model's code reaches them, and no layer is reordered.
"""

from collections.abc import Callable

from baechi.place.ledger import Ledger
from baechi.place.problem import ANYWHERE, Problem


def walk(problem: Problem, ledger: Ledger, choose: Callable[[int], int | None]) -> int | None:
    """Place and run every layer."""
    for layer, group in enumerate(problem.indexed.group_of):
        if ledger.device_of[group] == ANYWHERE:
            device = choose(layer)
            if device is None:
                return layer
            ledger.place(group, device)
        elif ledger.short_bytes(layer, ledger.device_of[group]) > 0:
            return layer
        ledger.run(layer)
    return None


def best_fit(problem: Problem, short_bytes: Callable[[int], int]) -> int | None:
    """The device that would have the least left."""
    fitting = [(-short, device) for device in problem.devices if (short := short_bytes(device)) <= 0]
    return min(fitting)[1] if fitting else None
