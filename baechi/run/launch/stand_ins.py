"""Make placeholders (deferred tensors) for what a task will return; later turn them into the results."""

from collections.abc import Callable
from typing import Any

import torch

from baechi.errors import BaechiError
from baechi.run.deferred.storage_use import StorageUse, share_use, use_of
from baechi.run.deferred.task import Task
from baechi.run.deferred.tensor import Deferred, become, defer, is_deferred
from baechi.run.foresee.outcome import Outcome, Slot
from baechi.run.launch.call import Call
from baechi.torchlib.tensors.pytree import tensors_in


def stand_ins(
    task: Task, call: Call, outcome: Outcome, given: list[torch.Tensor]
) -> tuple[Any, list[Deferred | None]]:
    """Make deferred tensors for the result of a task.

    Args:
        task: the task, a layer or function that waits for its turn to launch.
        call: the call that it will run.
        outcome: the call's inferred outcome.
        given: the distinct tensors among its arguments, deferred or not.

    Returns:
        The result that the model's code gets, with returned arguments as they are; and by slot of the
        result (`Slot`) the deferred tensor, None for a returned argument.
    """
    values: list[Deferred | None] = []
    results: list[torch.Tensor] = []
    slots = zip(outcome.metas, outcome.given, outcome.alias, outcome.memory, strict=True)
    uses: dict[int, StorageUse] = {}
    for meta, argument, alias, memory in slots:
        if argument is not None:
            results.append(given[argument])
            values.append(None)
            continue
        # Tasks that wait are ordered by storage: a placeholder that will alias an argument shares its
        # storage's record, so a write through one waits for reads through the other.
        if alias is not None:
            use = use_of(given[alias]) or StorageUse()
            share_use(given[alias], use)
        else:  # several results that will be views of one memory share one record
            use = uses.setdefault(memory, StorageUse(writer=task))
        value = defer(meta, task, use, call.place, call.number)
        results.append(value)
        values.append(value)
    return _filled(outcome.result, results), values


def hand_over(
    values: list[Deferred | None],
    becomes: Callable[[torch.Tensor, torch.Tensor], None],
    name: str,
    box: list[Any],
) -> list[torch.Tensor]:
    """Turn deferred tensors into the computed results.

    Args:
        values: by slot of the result, the deferred tensor.
        becomes: called with each result and the deferred tensor that is about to become it.
        name: the layer or function that was launched.
        box: a list that holds the only reference to the result; it is emptied. (`become` takes over a
            tensor only if nothing else refers to it; else it makes an alias.)

    Returns:
        The tensors returned: former placeholders, which are real now, and returned arguments.

    Raises:
        BaechiError: the results differ from those that were inferred.
    """
    real = list(tensors_in(box.pop()))
    _check(name, values, real)
    became: list[torch.Tensor] = []
    while real:  # pop, not iterate: `become` counts references to a result to see if others hold it
        tensor, value = real.pop(), values.pop()
        became.append(tensor if value is None else value)
        if value is not None and is_deferred(value):
            becomes(tensor, value)
            use = use_of(value)
            become(value, tensor)
            if use is not None:  # the real storage takes over the record of waiting readers and writers
                share_use(value, use)
    return became[::-1]


def _check(name: str, values: list[Deferred | None], real: list[torch.Tensor]) -> None:
    """Raise if the results have another number, shape or dtype than their placeholders."""
    fits = len(real) == len(values)
    for value, tensor in zip(values, real, strict=False):
        if value is not None and is_deferred(value):
            fits &= tensor.shape == value.meta.size and tensor.dtype == value.meta.dtype
    if not fits:
        raise BaechiError(
            f"{name} returned something else than was inferred from its arguments (number, shape or dtype "
            "of tensors): its result depends on state that baechi does not see. Run it with reorder=False"
        )


def _filled(template: Any, results: list[torch.Tensor]) -> Any:
    """The template with a tensor in place of each slot."""
    if isinstance(template, Slot):
        return results[template.index]
    if isinstance(template, (list, tuple)):
        items = [_filled(item, results) for item in template]
        return type(template)(*items) if hasattr(template, "_fields") else type(template)(items)
    if isinstance(template, dict):
        return {key: _filled(item, results) for key, item in template.items()}
    return template
