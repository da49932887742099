"""Who is going to read and write a storage, of those that wait: so that no order of launches mixes them up.

reads  x --- A waits            a writer comes after the last writer and all readers since;
writes x --- B waits after A    a reader comes after the last writer
reads  x --- C waits after B
"""

from dataclasses import dataclass, field

import torch

from baechi.run.deferred.task import WAITS, Task
from baechi.torchlib.tensors.storage import storage_object

_NAME = "_baechi_use"


@dataclass(slots=True)
class StorageUse:
    """Those that wait to read or write one storage.

    Args:
        writer: the last that writes it.
        readers: those that read it after that.
    """

    writer: Task | None = None
    readers: list[Task] = field(default_factory=list)


def use_of(tensor: torch.Tensor) -> StorageUse | None:
    """Who waits to use a tensor's storage, if anybody does or did."""
    use: StorageUse | None = getattr(storage_object(tensor), _NAME, None)
    return use


def share_use(tensor: torch.Tensor, use: StorageUse) -> None:
    """Let a tensor's storage have this use: it is, or will be, the same storage."""
    setattr(storage_object(tensor), _NAME, use)


def needs_to_read(tensor: torch.Tensor) -> list[Task]:
    """What must launch before the tensor can be read."""
    use = use_of(tensor)
    return [use.writer] if use is not None and use.writer is not None and use.writer.state == WAITS else []


def needs_to_write(tensor: torch.Tensor) -> list[Task]:
    """What must launch before the tensor can be written."""
    use = use_of(tensor)
    if use is None:
        return []
    return needs_to_read(tensor) + [task for task in use.readers if task.state == WAITS]


def note_read(tensor: torch.Tensor, task: Task) -> None:
    """A task will read the tensor."""
    use = _use(tensor)
    if use.readers and use.readers[0].state != WAITS:
        use.readers = [reader for reader in use.readers if reader.state == WAITS]
    use.readers.append(task)


def note_write(tensor: torch.Tensor, task: Task) -> None:
    """A task will write the tensor."""
    use = _use(tensor)
    use.writer, use.readers = task, []


def _use(tensor: torch.Tensor) -> StorageUse:
    use = use_of(tensor)
    if use is None:
        use = StorageUse()
        share_use(tensor, use)
    return use
