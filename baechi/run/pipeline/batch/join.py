"""What the microbatches returned, as one result: tensors along the batch, the loss as a sum."""

import copy
import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any, NoReturn

import torch

from baechi.errors import BaechiError

PLAIN = (bool, int, float, str, bytes, torch.Size, torch.dtype, torch.device)
"""Values that are joined if all parts give the same."""


class AbstractJoiner(ABC):
    """Joins outputs of microbatches.

    Attributes:
        apart: by name in the result, why an output cannot be joined, as far as that is known.
    """

    apart: Mapping[str, str]

    @abstractmethod
    def join(self, tensors: Sequence[torch.Tensor], name: str) -> Any:
        """From a tensor of each microbatch one value.

        Args:
            tensors: by microbatch.
            name: their name in the result.
        """

    @abstractmethod
    def in_rows(self, lists: Sequence[list[Any]], name: str) -> Any:
        """From a list of each microbatch one value; None if they have no item for each row.

        Args:
            lists: by microbatch.
            name: their name in the result.
        """


class Unjoined:
    """In place of an output that has no rule to be joined by; using it raises.

    Args:
        name: its name in the result.
        what: what it is.
        why: what is known of it, else.
    """

    _name: str
    _what: str
    _why: str

    def __init__(self, name: str, what: str, why: str = "") -> None:
        vars(self).update(_name=name, _what=what, _why=why)

    def __repr__(self) -> str:
        return f"<{self._name}: {self._what} of each microbatch, not joined>"

    def __format__(self, spec: str) -> str:
        return self._refuse() if spec else repr(self)

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise BaechiError(
            f"the output {self._name or 'of the model'} is a {self._what} of each microbatch, and nothing "
            f"says how these are joined{self._why and f' ({self._why})'}: compute with outputs that have a "
            "row for each row of the batch (of similarities: with the embeddings), call the model inside of "
            "`with baechi.unsplit(model):`, or distribute it without microbatches"
        )

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        given = [*args, *(kwargs or {}).values()]
        flat = [one for each in given for one in (each if isinstance(each, (list, tuple)) else [each])]
        next(one for one in flat if isinstance(one, Unjoined))._refuse()

    __reduce_ex__ = _refuse  # a file would hold what nobody can use
    __hash__ = object.__hash__
    __eq__ = __ne__ = _refuse
    __contains__ = __index__ = __complex__ = __round__ = __invert__ = __pos__ = _refuse
    __floordiv__ = __mod__ = __rfloordiv__ = __rmod__ = __and__ = __or__ = __xor__ = _refuse
    __iadd__ = __isub__ = __imul__ = __itruediv__ = __delitem__ = __array__ = _refuse
    __getattr__ = __getitem__ = __iter__ = __len__ = __bool__ = __call__ = _refuse
    __setattr__ = __setitem__ = __float__ = __int__ = __neg__ = __abs__ = _refuse
    __add__ = __sub__ = __mul__ = __truediv__ = __matmul__ = __pow__ = __lt__ = __gt__ = _refuse
    __radd__ = __rsub__ = __rmul__ = __rtruediv__ = __rmatmul__ = __rpow__ = __le__ = __ge__ = _refuse


def joined(results: Sequence[Any], joiner: AbstractJoiner, name: str = "") -> Any:
    """One result from those of the microbatches."""
    are_mixed = len(set(map(type, results))) > 1
    if are_mixed:
        results = _as_losses(results, name)
    first = results[0]
    why = joiner.apart.get(name)
    if why is not None:
        return Unjoined(name, _in_words(first), why)
    if isinstance(first, torch.Tensor) and (not are_mixed or all(map(torch.is_tensor, results))):
        return joiner.join(results, name)
    if are_mixed:
        return Unjoined(name, " or ".join(sorted({type(one).__name__ for one in results})))
    if isinstance(first, Mapping):
        return _joined_mapping(results, joiner, name)
    if isinstance(first, list):
        items = joiner.in_rows(results, name)
        if items is not None:
            return items
    if isinstance(first, PLAIN):
        return first if all(one == first for one in results) else Unjoined(name, type(first).__name__)
    if isinstance(first, (list, tuple)):
        if len({len(one) for one in results}) > 1:
            return Unjoined(name, f"{type(first).__name__} of different length")
        items = [
            joined(each, joiner, below(name, index)) for index, each in enumerate(zip(*results, strict=True))
        ]
        return type(first)(*items) if hasattr(first, "_fields") else type(first)(items)
    if dataclasses.is_dataclass(first) and not isinstance(first, type):
        made = copy.copy(first)
        for field in dataclasses.fields(first):
            each = [getattr(one, field.name) for one in results]
            object.__setattr__(made, field.name, joined(each, joiner, below(name, field.name)))
        return made
    return first if first is None else Unjoined(name, type(first).__name__)


def _as_losses(results: Sequence[Any], name: str) -> Sequence[Any]:
    """Numbers as tensors, among losses that are tensors: a microbatch may have no targets."""
    losses = [one for one in results if isinstance(one, torch.Tensor) and one.numel() == 1]
    numbers = [one for one in results if isinstance(one, (int, float))]
    if not losses or not numbers or len(losses) + len(numbers) < len(results) or not is_loss_at(name):
        return results
    return [one if isinstance(one, torch.Tensor) else losses[0].new_tensor(one) for one in results]


def _joined_mapping(results: Sequence[Mapping[Any, Any]], joiner: AbstractJoiner, name: str) -> Any:
    first = results[0]
    if any(one.keys() != first.keys() for one in results):
        return Unjoined(name, f"{type(first).__name__} of different keys")
    items = {key: joined([one[key] for one in results], joiner, below(name, key)) for key in first}
    if not isinstance(first, MutableMapping):
        return items
    made = copy.copy(first)
    for key, item in items.items():
        made[key] = item
    return made


def below(name: str, key: Any) -> str:
    """The name of a value inside of another one."""
    return f"{name}.{key}" if name else str(key)


def is_loss_at(name: str) -> bool:
    """Whether a number at that place in a result is joined as losses are."""
    last = name.rpartition(".")[2]
    return not name or "loss" in last or last == "0"


def leaves(results: Sequence[Any], name: str = "") -> Iterator[tuple[str, Sequence[Any]]]:
    """What results have at each place, by its name; what differs in structure is not looked into."""
    results = _as_losses(results, name)
    first = results[0]
    if any(type(one) is not type(first) for one in results) or isinstance(first, torch.Tensor):
        yield name, results
    elif isinstance(first, Mapping):
        for key in first if all(one.keys() == first.keys() for one in results) else ():
            yield from leaves([one[key] for one in results], below(name, key))
    elif (
        isinstance(first, (list, tuple))
        and not isinstance(first, PLAIN)
        and len({len(one) for one in results}) == 1
    ):
        for index, each in enumerate(zip(*results, strict=True)):
            yield from leaves(each, below(name, index))
    elif dataclasses.is_dataclass(first):
        for field in dataclasses.fields(first):
            yield from leaves([getattr(one, field.name) for one in results], below(name, field.name))
    else:
        yield name, results


def loss_name(result: Any) -> str:
    """The name of the loss among what a model returned, if it has one."""
    if isinstance(result, torch.Tensor):
        return ""
    is_row = isinstance(result, (list, tuple)) and not hasattr(result, "loss")
    if isinstance(result, tuple) and hasattr(result, "loss"):
        return str(result._fields.index("loss")) if hasattr(result, "_fields") else "loss"
    return "0" if is_row else "loss"


def loss_in(result: Any) -> torch.Tensor | None:
    """The loss among what a model returned: one floating element; None if there is none.

    It is the result itself, its `loss`, or the first of a tuple.
    """
    found = result
    if isinstance(result, Mapping):
        found = result.get("loss")
    elif isinstance(result, (list, tuple)) and not hasattr(result, "loss"):
        found = result[0] if result else None
    elif not isinstance(result, torch.Tensor):
        found = getattr(result, "loss", None)
    if not isinstance(found, torch.Tensor) or found.numel() != 1 or not found.is_floating_point():
        return None
    return found


def _in_words(value: Any) -> str:
    return (
        f"tensor of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
    )
