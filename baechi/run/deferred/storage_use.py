"""By storage, the waiting tasks that will read or write it, so that launches keep reads and writes in order.

reads  x --- A waits            a writer launches after the last writer and all readers since;
writes x --- B waits after A    a reader launches after the last writer
reads  x --- C waits after B
"""

from dataclasses import dataclass, field

import torch

from baechi.run.deferred.task import WAITS, Task
from baechi.torchlib.tensors.storage import storage_object

_NAME = "_baechi_use"


@dataclass(slots=True)
class StorageUse:
    """The waiting tasks that will read or write one storage.

    Args:
        writer: the last task that writes it.
        readers: the tasks that read it after that write.
    """

    writer: Task | None = None
    readers: list[Task] = field(default_factory=list)


def use_of(tensor: torch.Tensor) -> StorageUse | None:
    """The record of a tensor's storage; None if no task has waited to use it."""
    use: StorageUse | None = getattr(storage_object(tensor), _NAME, None)
    return use


def share_use(tensor: torch.Tensor, use: StorageUse) -> None:
    """Attach a record to a tensor's storage: it is, or will be, the storage that the record is about."""
    setattr(storage_object(tensor), _NAME, use)


def needs_to_read(tensor: torch.Tensor) -> list[Task]:
    """The tasks that must launch before the tensor can be read."""
    use = use_of(tensor)
    return [use.writer] if use is not None and use.writer is not None and use.writer.state == WAITS else []


def needs_to_write(tensor: torch.Tensor) -> list[Task]:
    """The tasks that must launch before the tensor can be written."""
    use = use_of(tensor)
    if use is None:
        return []
    return needs_to_read(tensor) + [task for task in use.readers if task.state == WAITS]


def note_read(tensor: torch.Tensor, task: Task) -> None:
    """A task will read the tensor."""
    use = _use(tensor)
    # Forget readers that have launched, or a weight that many layers read would collect them for ever.
    if use.readers and use.readers[0].state != WAITS:
        use.readers = [reader for reader in use.readers if reader.state == WAITS]
    use.readers.append(task)


def note_write(tensor: torch.Tensor, task: Task) -> None:
    """A task will write the tensor."""
    use = _use(tensor)
    use.writer, use.readers = task, []  # the writer waits for these readers, so it stands for them


def _use(tensor: torch.Tensor) -> StorageUse:
    use = use_of(tensor)
    if use is None:
        use = StorageUse()
        share_use(tensor, use)
    return use
