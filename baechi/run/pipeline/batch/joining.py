"""What the microbatches returned, as one result: tensors along the batch, the loss as a sum."""

import copy
import dataclasses
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any, NoReturn

import torch

from baechi.errors import BaechiError
from baechi.torchlib.tensors.pytree import named_tensors

JoinTensors = Callable[[Sequence[torch.Tensor], str], Any]
"""From a tensor of each microbatch, and its name in the result, one value."""

JoinLists = Callable[[Sequence[list[Any]], str], Any]
"""From a list of each microbatch, and its name, one value; None if they have no item for each row."""


class Unjoined:
    """In place of an output that has no rule to be joined by; using it raises.

    Args:
        name: its name in the result.
        what: what it is.
    """

    _name: str
    _what: str

    def __init__(self, name: str, what: str) -> None:
        vars(self).update(_name=name, _what=what)

    def __repr__(self) -> str:
        return f"<{self._name}: {self._what} of each microbatch, not joined>"

    def __format__(self, spec: str) -> str:
        return self._refuse() if spec else repr(self)

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise BaechiError(
            f"the output {self._name or 'of the model'} is a {self._what} of each microbatch, and nothing "
            "says how these are joined: return tensors with a row for each row of the batch, or "
            "distribute the model without microbatches"
        )

    __getattr__ = __getitem__ = __iter__ = __len__ = __bool__ = __call__ = _refuse
    __setattr__ = __setitem__ = __float__ = __int__ = __neg__ = __abs__ = _refuse
    __add__ = __sub__ = __mul__ = __truediv__ = __matmul__ = __pow__ = __lt__ = __gt__ = _refuse
    __radd__ = __rsub__ = __rmul__ = __rtruediv__ = __rmatmul__ = __rpow__ = __le__ = __ge__ = _refuse


def joined(results: Sequence[Any], join: JoinTensors, in_rows: JoinLists, name: str = "") -> Any:
    """One result from those of the microbatches.

    Args:
        results: they have the same structure.
        join: joins tensors.
        in_rows: joins lists.
        name: of the value, in errors.
    """
    results = _as_losses(results, name)
    first = results[0]
    if all(isinstance(one, torch.Tensor) for one in results):
        return join(results, name)
    if any(type(one) is not type(first) for one in results):
        return Unjoined(name, " or ".join(sorted({type(one).__name__ for one in results})))
    if isinstance(first, Mapping):
        return _joined_mapping(results, join, in_rows, name)
    if isinstance(first, list):
        items = in_rows(results, name)
        if items is not None:
            return items
    if isinstance(first, (list, tuple)):
        if len({len(one) for one in results}) > 1:
            return Unjoined(name, f"{type(first).__name__} of different length")
        items = [
            joined(each, join, in_rows, below(name, index))
            for index, each in enumerate(zip(*results, strict=True))
        ]
        return type(first)(*items) if hasattr(first, "_fields") else type(first)(items)
    if dataclasses.is_dataclass(first) and not isinstance(first, type):
        made = copy.copy(first)
        for field in dataclasses.fields(first):
            each = [getattr(one, field.name) for one in results]
            object.__setattr__(made, field.name, joined(each, join, in_rows, below(name, field.name)))
        return made
    if first is None or isinstance(first, (bool, int, float, str, bytes)):
        return first if all(one == first for one in results) else Unjoined(name, type(first).__name__)
    return Unjoined(name, type(first).__name__)


def _as_losses(results: Sequence[Any], name: str) -> Sequence[Any]:
    """Numbers as tensors, among losses that are tensors: a microbatch may have no targets."""
    losses = [one for one in results if isinstance(one, torch.Tensor) and not one.dim()]
    numbers = [one for one in results if isinstance(one, (int, float))]
    if not losses or not numbers or len(losses) + len(numbers) < len(results) or not is_loss_at(name):
        return results
    return [one if isinstance(one, torch.Tensor) else losses[0].new_tensor(one) for one in results]


def _joined_mapping(
    results: Sequence[Mapping[Any, Any]], join: JoinTensors, in_rows: JoinLists, name: str
) -> Any:
    first = results[0]
    if any(one.keys() != first.keys() for one in results):
        return Unjoined(name, f"{type(first).__name__} of different keys")
    items = {key: joined([one[key] for one in results], join, in_rows, below(name, key)) for key in first}
    if not isinstance(first, MutableMapping):
        return items
    made = copy.copy(first)
    for key, item in items.items():
        made[key] = item
    return made


def below(name: str, key: Any) -> str:
    """The name of a value inside of another one.

    Args:
        name: of the outer one; empty for the result.
        key: of the inner one.
    """
    return f"{name}.{key}" if name else str(key)


def is_loss_at(name: str) -> bool:
    """Whether a number at that place in a result is joined as losses are.

    Args:
        name: its name, which is empty for the result itself.
    """
    last = name.rpartition(".")[2]
    return not name or "loss" in last or last == "0"


def objective_in(result: Any) -> torch.Tensor | None:
    """What is minimized: the loss, else the sum of all numbers that are joined as losses; None without any.

    Args:
        result: what the model returned.
    """
    loss = loss_in(result)
    if loss is not None:
        return loss
    named = [(name.removeprefix("."), tensor) for name, tensor in named_tensors("", result)]
    numbers = [one for name, one in named if is_loss_at(name) and not one.dim() and one.is_floating_point()]
    return torch.stack([number.detach().cpu() for number in numbers]).sum() if numbers else None


def loss_in(result: Any) -> torch.Tensor | None:
    """The loss among what a model returned: a scalar that has a gradient; None if there is none.

    It is the result itself, its `loss`, or the first of a tuple.

    Args:
        result: what the model returned.
    """
    found = result
    if isinstance(result, Mapping):
        found = result.get("loss")
    elif isinstance(result, (list, tuple)) and not hasattr(result, "loss"):
        found = result[0] if result else None
    elif not isinstance(result, torch.Tensor):
        found = getattr(result, "loss", None)
    if not isinstance(found, torch.Tensor) or found.dim() or not found.is_floating_point():
        return None
    return found
