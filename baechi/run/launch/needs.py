"""What must launch before a call: tasks that make what it reads, or that wait to use what it writes.

an argument that is deferred              the task that computes it
memory that a task waits to write         that task
memory that the call itself will write    all tasks that wait to read or write it
what reaches a layer unseen               the layers that are its parents in the plan
"""

from collections.abc import Iterable, Mapping

import torch

from baechi.run.deferred.storage_use import needs_to_read, needs_to_write
from baechi.run.deferred.task import WAITS, Task
from baechi.run.deferred.tensor import is_deferred
from baechi.run.launch.pending import Pending
from baechi.run.state.contents import Contents
from baechi.run.steady.call_contents import KnownContents


class Needs:
    """Finds the tasks that a call needs, in one step.

    Args:
        parents: by layer, with the number of its call, the layers that it follows in the plan's graph.
        pending: the step's tasks.

    Attributes:
        layers: the layers that had to wait, by the same name.
    """

    def __init__(self, parents: Mapping[str, Iterable[str]], pending: Pending) -> None:
        self.layers: dict[str, Task] = {}
        self._parents = parents
        self._pending = pending

    def of(self, given: Iterable[torch.Tensor]) -> dict[Task, None]:
        """The tasks that must launch before some tensors can be read.

        Args:
            given: the tensors.
        """
        needs: dict[Task, None] = {}
        for tensor in given:
            if is_deferred(tensor):
                needs[tensor.task] = None  # type: ignore[attr-defined]
            for task in needs_to_read(tensor):
                needs[task] = None
        return needs

    def of_layer(
        self, layer: str, contents: Contents | KnownContents, keeps: Iterable[torch.Tensor]
    ) -> dict[Task, None]:
        """The tasks that must launch before a layer.

        Args:
            layer: its name, with the number of its call.
            contents: what it can reach.
            keeps: the tensors that it may write although they are no arguments.
        """
        given = contents.given
        needs = self.of(contents.tensors if self._pending.writers or given is None else given)
        for tensor in keeps:
            needs.update(dict.fromkeys(needs_to_write(tensor)))
        needs.update(dict.fromkeys(self._waiting_parents(layer)))
        return needs

    def unseen(self, layer: str) -> bool:
        """Whether a layer may have to wait although it is given no deferred value.

        Args:
            layer: its name, with the number of its call.
        """
        return bool(self._pending.writers or self._waiting_parents(layer))

    def _waiting_parents(self, layer: str) -> list[Task]:
        """The plan's parents that wait: an input may reach a layer unseen (a global, a C extension)."""
        tasks = [self.layers.get(parent) for parent in self._parents.get(layer, ())]
        return [task for task in tasks if task is not None and task.state == WAITS]
