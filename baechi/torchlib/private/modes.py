"""Function modes and dispatch modes: how they are put on, taken off, counted and set aside."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from operator import is_
from typing import TYPE_CHECKING, Any

import torch

from baechi.torchlib.private.lookup import kind, named

if TYPE_CHECKING:
    from torch.utils._device import DeviceContext as DeviceContext
    from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
else:
    TorchDispatchMode = kind("torch.utils._python_dispatch.TorchDispatchMode", "see every operation")
    DeviceContext = kind("torch.utils._device.DeviceContext", "know the device of `with torch.device(...)`")

_Aside = Callable[[], AbstractContextManager[object]]

without_torch_function: _Aside = named(
    "torch._C.DisableTorchFunction", "work on tensors unseen by function modes and subclasses"
)
without_subclass_function: _Aside = named(
    "torch._C.DisableTorchFunctionSubclass", "read a deferred value without launching it"
)


def device_of(tensor: torch.Tensor) -> torch.device:
    """Where a tensor lies, unseen by modes: a step's mode tells the model's code one device for all."""
    with without_torch_function():
        return tensor.device


function_modes: Callable[[], Sequence[Any]] = named(
    "torch.overrides._get_current_function_mode_stack", "find the mode of the step whose code runs"
)
push_function_mode: Callable[[Any], None] = named(
    "torch._C._push_on_torch_function_stack", "put a mode back where it stood"
)
pop_function_mode: Callable[[], Any] = named(
    "torch._C._pop_torch_function_stack", "take a mode off, wherever it stands"
)
function_mode_count: Callable[[], int] = named(
    "torch._C._len_torch_function_stack", "know whether a mode is on that was not on before"
)
function_modes_are_on: Callable[[], bool] = named(
    "torch._C._is_torch_function_mode_enabled", "let function modes see what reached torch without them"
)

dispatch_modes: Callable[[], Sequence[Any]] = named(
    "torch.utils._python_dispatch._get_current_dispatch_mode_stack", "watch each thread once"
)
push_dispatch_mode: Callable[[Any], None] = named(
    "torch.utils._python_dispatch._push_mode", "watch the threads that start while a cluster is emulated"
)
pop_dispatch_mode: Callable[[], Any] = named(
    "torch.utils._python_dispatch._pop_mode", "watch the threads that start while a cluster is emulated"
)
dispatch_mode_count: Callable[[], int] = named(
    "torch._C._len_torch_dispatch_stack", "know whether a mode is on that was not on before"
)

_python_dispatch = named("torch.utils._python_dispatch", "leave torch's notes of dispatch modes as they were")
_NOTES = [name for name in vars(_python_dispatch) if name.startswith("_is_in_") and "mode" in name]
_tell_compiler = getattr(_python_dispatch, "set_is_in_mode_without_ignore_compile_internals", None)

_NOTHING = nullcontext()


def dispatch_notes() -> dict[str, bool]:
    """What torch notes for the whole process when a dispatch mode is entered: the compiler looks at it."""
    return {name: getattr(_python_dispatch, name) for name in _NOTES}


def set_dispatch_notes(notes: dict[str, bool]) -> None:
    """Put those notes back. It may be interrupted, and done again."""
    for name, value in notes.items():
        setattr(_python_dispatch, name, value)
    if _tell_compiler is not None:  # newer than torch 2.9
        _tell_compiler(notes["_is_in_any_mode_without_ignore_compile_internals"])


def makes_fx_graph() -> bool:
    """Whether operations are being traced into a graph of torch.fx, by `make_fx`: its mode is on then."""
    return any(type(mode).__name__ == "ProxyTorchDispatchMode" for mode in dispatch_modes())


def set_dispatch_modes(modes: Sequence[Any]) -> None:
    """Let these be the dispatch modes of this thread. It may be interrupted, and done again."""
    _set(dispatch_modes(), modes, pop_dispatch_mode, push_dispatch_mode)


def set_function_modes(modes: Sequence[Any]) -> None:
    """Let these be the function modes of this thread. It may be interrupted, and done again."""
    _set(function_modes(), modes, pop_function_mode, push_function_mode)


def _set(
    now: Sequence[Any], modes: Sequence[Any], pop: Callable[..., object], push: Callable[..., object]
) -> None:
    if len(now) == len(modes) and all(map(is_, now, modes)):
        return
    for _ in now:
        pop()
    for mode in modes:
        push(mode)


class _WithoutDispatchModes:
    """No dispatch mode is on within this context.

    Torch's own (`_disable_current_modes`) puts back what it has taken off so far, and does so when Python
    gets to it: an exception of a signal's handler within it loses modes, and they may come back much later.
    """

    __slots__ = ("_modes",)

    def __enter__(self) -> None:
        self._modes = dispatch_modes()
        try:
            set_dispatch_modes(())
        except BaseException:  # of a signal's handler: this context is not left
            set_dispatch_modes(self._modes)
            raise

    def __exit__(self, *exception: object) -> None:
        set_dispatch_modes(self._modes)


def without_dispatch_modes() -> AbstractContextManager[object]:
    """Compute without being watched. (Most often no mode is on.)"""
    return _WithoutDispatchModes() if dispatch_mode_count() else _NOTHING


class UntracedDispatchMode(TorchDispatchMode):
    """A dispatch mode without torch's guard against being compiled: that is a detour at every operation.

    In a torch that does not ask, the method has no effect.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False
