"""Opens the ledger that a task needs."""

from collections.abc import Sequence

from baechi.place.ledgers.abstract import Ledger
from baechi.place.ledgers.inference import InferenceLedger
from baechi.place.ledgers.training import TrainingLedger
from baechi.place.task import ANYWHERE, Task


def open_ledger(task: Task, device_of: Sequence[int] = ()) -> Ledger:
    """A ledger in which nothing has run.

    Args:
        task: what is to be placed.
        device_of: by group, where it is placed from the beginning, whether it fits or not; as
            pinned unless given.
    """
    ledger: Ledger = TrainingLedger(task) if task.training else InferenceLedger(task)
    for group, device in enumerate(device_of or task.pins):
        if device != ANYWHERE:
            ledger.place(group, device)
    return ledger
