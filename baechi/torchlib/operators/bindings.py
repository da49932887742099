"""The function of C that calls an operator soonest: `torch.mm`, `Tensor.reshape`.

An operator's own object looks at its schema at each call, which takes half of the time of a small kernel.
Torch's function of that name chooses an operator by the kinds of its arguments. Which one it chooses is asked
once for such kinds, on `meta`: where it calls the same, with the same arguments, it stands for the operator.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

import torch

from baechi.torchlib.private.modes import TorchDispatchMode, without_dispatch_modes, without_torch_function
from baechi.torchlib.private.operators import OpOverload, entrance_of
from baechi.torchlib.private.tensors import TensorBase
from baechi.torchlib.tensors.pytree import map_tensors, tensors_in

_Call = tuple[Any, Any, Any]

_known: dict[Hashable, Callable[..., Any]] = {}


def binding_of(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Callable[..., Any]:
    """What calls an operator soonest with arguments of such kinds.

    Args:
        target: the operator; any other function stands for itself.
        args: its arguments; of tensors only what they look like is asked.
        kwargs: its arguments by name.
    """
    if type(target) is not OpOverload:
        found: Callable[..., Any] = target
        return found
    key = target, tuple(map(_kind, args)), tuple([(name, _kind(one)) for name, one in kwargs.items()])
    if key not in _known:
        _known[key] = _soonest(target, args, kwargs)
    return _known[key]


def _kind(value: Any) -> Hashable:
    """What torch's functions choose an operator by."""
    if isinstance(value, torch.Tensor):
        return value.dim() == 0, value.dtype
    if isinstance(value, (list, tuple)):
        return tuple(map(_kind, value))
    kind: type = type(value)
    return kind


def _soonest(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Callable[..., Any]:
    found: Callable[..., Any] = entrance_of(target)
    if not any(True for _ in tensors_in(args, kwargs)):
        return found  # it makes a tensor, on a device
    args, kwargs = map_tensors(_on_meta, (tuple(args), dict(kwargs)))
    with without_dispatch_modes(), without_torch_function():
        expected = _calls(target, args, kwargs)
        for one in _functions(target):
            if expected is not None and _calls(one, args, kwargs) == expected:
                return one
    return found


def _functions(target: Any) -> Iterator[Callable[..., Any]]:
    """Torch's functions of an operator's name."""
    space, _, name = target.name().partition("::")
    name = name.partition(".")[0]
    for owner in (torch, TensorBase) if space == "aten" else ():
        function: Any = vars(owner).get(name)
        if type(function) in (type(torch.mm), type(TensorBase.view)):  # written in C
            yield function


def _on_meta(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


class _Recorder(TorchDispatchMode):
    """Notes the operators that are called."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[_Call] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        looks: list[Any] = []

        def shell(one: torch.Tensor) -> Any:
            looks.append((tuple(one.shape), one.stride(), one.dtype))
            return None

        self.calls.append((func, map_tensors(shell, (args, kwargs or {})), looks))
        return func(*args, **(kwargs or {}))


def _calls(function: Callable[..., Any], args: Any, kwargs: Any) -> list[_Call] | None:
    """The operators that a function calls; None if it does not run on `meta`."""
    with torch.no_grad(), _Recorder() as recorder:
        try:
            function(*args, **kwargs)
        except (RuntimeError, NotImplementedError, TypeError, ValueError, AttributeError):
            return None
        calls: list[_Call] = recorder.calls
    return calls
