"""Deferred values in place of what a task will return, and the results that they become."""

from collections.abc import Callable
from typing import Any

import torch

from baechi.errors import BaechiError
from baechi.run.deferred.call import Call
from baechi.run.deferred.storage_use import StorageUse, share_use, use_of
from baechi.run.deferred.task import Task
from baechi.run.deferred.tensor import Deferred, become, defer, is_deferred
from baechi.run.foresee.outcome import Outcome, Slot
from baechi.torchlib.private.modes import without_subclass_function
from baechi.torchlib.tensors.pytree import tensors_in


def stand_ins(
    task: Task, call: Call, outcome: Outcome, given: list[torch.Tensor]
) -> tuple[Any, list[Deferred | None]]:
    """Make deferred values for a task.

    Args:
        task: the task.
        call: what it will do.
        outcome: what will come of it.
        given: the distinct tensors that it is given, deferred or not.

    Returns:
        What the code gets: the result, with tensors that were given as themselves; and by slot of the
        result the deferred value that stands for it, None for tensors that were given.
    """
    values: list[Deferred | None] = []
    results: list[torch.Tensor] = []
    slots = zip(outcome.metas, outcome.given, outcome.alias, outcome.memory, strict=True)
    uses: dict[int, StorageUse] = {}
    for meta, same, alias, memory in slots:
        if same is not None:
            results.append(given[same])
            values.append(None)
            continue
        value = defer(meta, task, call.place, call.number)
        if alias is not None:
            use = use_of(given[alias]) or StorageUse()
            share_use(given[alias], use)
            share_use(value, use)
        else:  # views of one memory have one use
            share_use(value, uses.setdefault(memory, StorageUse(writer=task)))
        results.append(value)
        values.append(value)
    return _filled(outcome.result, results), values


def hand_over(
    values: list[Deferred | None],
    becomes: Callable[[torch.Tensor, torch.Tensor], None],
    name: str,
    box: list[Any],
) -> list[torch.Tensor]:
    """Let deferred values become what was computed.

    Args:
        values: by slot of the result, the deferred value.
        becomes: told of a result and the value that is about to become it.
        name: what was launched.
        box: holds the result; nobody else does.

    Returns:
        What was returned: the values, real now, and tensors that were given.

    Raises:
        BaechiError: what was computed is not what was foreseen.
    """
    real = list(tensors_in(box.pop()))
    _check(name, values, real)
    became: list[torch.Tensor] = []
    while real:
        tensor, value = real.pop(), values.pop()
        became.append(tensor if value is None else value)
        if value is not None and is_deferred(value):
            becomes(tensor, value)
            use = use_of(value)
            become(value, tensor)
            if use is not None:  # who waits to read or write it waits for its real memory now
                share_use(value, use)
    return became[::-1]


def _check(name: str, values: list[Deferred | None], real: list[torch.Tensor]) -> None:
    with without_subclass_function():
        foreseen = [None if value is None else (value.shape, value.dtype) for value in values]
    fits = len(real) == len(values) and all(
        seen is None or seen == (tensor.shape, tensor.dtype)
        for seen, tensor in zip(foreseen, real, strict=True)
    )
    if not fits:
        raise BaechiError(
            f"{name} returned something else than it did before with the same arguments: what it returns "
            "depends on a state that is not seen. Run this model with reorder=False"
        )


def _filled(template: Any, results: list[torch.Tensor]) -> Any:
    if isinstance(template, Slot):
        return results[template.index]
    if isinstance(template, (list, tuple)):
        items = [_filled(item, results) for item in template]
        return type(template)(*items) if hasattr(template, "_fields") else type(template)(items)
    if isinstance(template, dict):
        return {key: _filled(item, results) for key, item in template.items()}
    return template
