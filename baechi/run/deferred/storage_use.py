"""By storage, the tasks that will read or write it, so that launches keep reads and writes in order.

A task is a layer or function that waits to be launched. A reader launches after the last writer. A writer
launches after the last writer and after all readers since. For tasks A, B, C in the code's order:

    A reads  x
    B writes x     launches after A
    C reads  x     launches after B
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from baechi.run.deferred.task import WAITS, Task
from baechi.run.deferred.tensor import Deferred, all_tensors, is_deferred
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
    use: StorageUse | None
    if type(tensor) is Deferred:
        use = tensor.use
        return use
    try:
        use = tensor.untyped_storage().__dict__.get(_NAME)
    except (NotImplementedError, RuntimeError):  # a wrapper of functorch's, or a tensor without storage
        use = getattr(storage_object(tensor), _NAME, None)
    return use


def share_use(tensor: torch.Tensor, use: StorageUse) -> None:
    """Attach a record to a tensor's storage: it is, or will be, the storage that the record is about."""
    if is_deferred(tensor):
        tensor.use = use  # type: ignore[attr-defined]
    else:
        setattr(storage_object(tensor), _NAME, use)


def needs_to_read(tensor: torch.Tensor) -> Sequence[Task]:
    """The tasks that must launch before the tensor can be read."""
    use = use_of(tensor)
    return (use.writer,) if use is not None and use.writer is not None and use.writer.state == WAITS else ()


def needs_to_write(tensor: torch.Tensor) -> Sequence[Task]:
    """The tasks that must launch before the tensor can be written."""
    use = use_of(tensor)
    if use is None:
        return ()
    return (*needs_to_read(tensor), *[task for task in use.readers if task.state == WAITS])


def force_writers(values: Any, reason: str) -> None:
    """Launch the tasks that wait to write some values.

    Args:
        values: tensors, nested in lists, tuples and dicts.
        reason: why the values are needed.
    """
    for value in all_tensors(values):
        for task in needs_to_read(value):
            task.force(reason)


def note_read(tensor: torch.Tensor, task: Task) -> None:
    """Note that a task will read the tensor."""
    use = _use_or_new(tensor)
    # Forget readers that have launched, or a weight that many layers read would collect them for ever.
    if use.readers and use.readers[0].state != WAITS:
        use.readers = [reader for reader in use.readers if reader.state == WAITS]
    use.readers.append(task)


def note_write(tensor: torch.Tensor, task: Task) -> None:
    """Note that a task will write the tensor."""
    use = _use_or_new(tensor)
    use.writer, use.readers = task, []  # the writer waits for these readers, so it stands for them


def _use_or_new(tensor: torch.Tensor) -> StorageUse:
    """The record of a tensor's storage, made if there is none."""
    use = use_of(tensor)
    if use is None:
        use = StorageUse()
        share_use(tensor, use)
    return use
