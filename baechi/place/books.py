"""Opens the ledger that a task needs."""

from collections.abc import Sequence

from baechi.place.inference_ledger import InferenceLedger
from baechi.place.ledger import Ledger
from baechi.place.task import ANYWHERE, Task
from baechi.place.training_ledger import TrainingLedger


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
