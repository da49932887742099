"""What a layer was called with: enough to call it again, alone, with other values of the same shapes."""

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from baechi.torchlib.private.modes import without_dispatch_modes, without_torch_function
from baechi.torchlib.private.transforms import is_wrapped, without_transforms
from baechi.torchlib.tensors.pytree import map_tensors


@dataclass(frozen=True, slots=True)
class Arguments:
    """A call, with tensors on the `meta` device in place of its own.

    Args:
        args: positional arguments, nested as they were.
        kwargs: keyword arguments.
        grad: whether gradients were on.
        autocast: the dtype that autocast casts to; None if it was off.
    """

    args: Any
    kwargs: Any
    grad: bool
    autocast: torch.dtype | None

    @classmethod
    def of(cls, args: Any, kwargs: Any) -> "Arguments":
        """Those of a call that is about to happen."""
        blanks: dict[int, torch.Tensor] = {}

        def blank(tensor: torch.Tensor) -> torch.Tensor:
            if is_wrapped(tensor):
                raise TypeError("a tensor inside a transform of torch.func")
            if id(tensor) not in blanks:
                made = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta")
                blanks[id(tensor)] = made.requires_grad_(tensor.requires_grad)
            return blanks[id(tensor)]

        grad = torch.is_grad_enabled()
        autocast = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
        outside = without_transforms()
        with without_dispatch_modes(), without_torch_function(), outside:
            args, kwargs = map_tensors(blank, (args, kwargs))
            _refuse_hidden_tensors((args, kwargs), blanks.values())
            args, kwargs = copy.deepcopy((args, kwargs))  # the call may change what it is given (a cache)
        return cls(args, kwargs, grad, autocast)

    def filled(self, make: Callable[[torch.Tensor], torch.Tensor]) -> tuple[Any, Any]:
        """Arguments to call with."""
        made: dict[int, torch.Tensor] = {}

        def fill(blank: torch.Tensor) -> torch.Tensor:
            if id(blank) not in made:
                made[id(blank)] = make(blank)
            return made[id(blank)]

        values = copy.deepcopy((self.args, self.kwargs))
        filled: tuple[Any, Any] = map_tensors(fill, values)
        return filled


def _refuse_hidden_tensors(values: Any, known: Iterable[torch.Tensor]) -> None:
    """Refuse tensors inside other objects: they cannot be replaced there, and torch cannot copy fake ones."""
    seen = {id(tensor) for tensor in known}
    waiting = [values]
    while waiting:
        value = waiting.pop()
        if id(value) in seen or isinstance(value, (str, bytes, int, float, type)):
            continue
        seen.add(id(value))
        if isinstance(value, torch.Tensor):
            raise TypeError("a tensor in an object")
        if isinstance(value, Mapping):
            waiting += [*value.keys(), *value.values()]
        elif isinstance(value, (list, tuple, set)):
            waiting += value
        waiting += getattr(value, "__dict__", {}).values()
