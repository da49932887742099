"""Writes to attributes of modules, told before they happen: comparing all attributes would find them late."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from baechi.torchlib.private.patches import MODULE_BUFFER, MODULE_DELETE, MODULE_SET

Told = Callable[[nn.Module], None]

_told: tuple[Told, ...] = ()
_lock = threading.Lock()


@contextmanager
def attribute_writes(told: Told) -> Iterator[None]:
    """Within this context, tell of each attribute that is set or deleted, and each buffer that is registered.

    What goes around `nn.Module` is not told: `vars(module)["kept"] = x`, `object.__setattr__(...)`.
    """
    global _told
    with _lock:
        _told = (*_told, told)
        MODULE_SET.put(_set)  # where it stands already, this does nothing
        MODULE_DELETE.put(_delete)
        MODULE_BUFFER.put(_register)
    try:
        yield
    finally:
        with _lock:
            _told = tuple([one for one in _told if one is not told])
            if not _told:
                MODULE_SET.take_back()
                MODULE_DELETE.take_back()
                MODULE_BUFFER.take_back()


def _set(module: nn.Module, name: str, value: Any) -> None:
    for told in _told:
        told(module)
    MODULE_SET.original(module, name, value)


def _delete(module: nn.Module, name: str) -> None:
    for told in _told:
        told(module)
    MODULE_DELETE.original(module, name)


def _register(module: nn.Module, *args: Any, **kwargs: Any) -> None:
    for told in _told:
        told(module)
    MODULE_BUFFER.original(module, *args, **kwargs)
