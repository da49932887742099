"""Names that torch does not promise to keep: found when baechi is imported, or replaced by what raises.

So a version of torch that lacks one does not break `import baechi`, and what does not need the name works.
Each name that is missing is said once, in the log.
"""

import logging
from importlib import import_module
from operator import attrgetter, methodcaller
from typing import Any, NoReturn

import torch

from baechi.errors import BaechiError

logger = logging.getLogger(__name__)

RAISES: Any = object()
"""There is no substitute: using a name that torch lacks raises a `BaechiError`."""

_missing: dict[str, str] = {}
_found: list[str] = []


def named(path: str, purpose: str, otherwise: Any = RAISES) -> Any:
    """What torch has under a name."""
    present, value = _find(path)
    return _noted(path, purpose, present, value, otherwise)


def kind(path: str, purpose: str) -> Any:
    """A class of torch; where torch lacks it, one without instances, from which others may inherit."""

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise _error(path, purpose)

    return named(path, purpose, type(path.rpartition(".")[2], (), {"__new__": refuse}))


def attribute(sample: object, name: str, purpose: str, *, call: bool = False) -> Any:
    """A function that reads a private attribute of torch's objects."""
    of = sample if isinstance(sample, type) else type(sample)
    read = methodcaller(name) if call else attrgetter(name)
    return _noted(f"{of.__module__}.{of.__qualname__}.{name}", purpose, hasattr(sample, name), read, RAISES)


def note_place(owner: object, name: str, purpose: str) -> None:
    """Say that something of torch is replaced: `missing_names` tells whether it is there."""
    if owner is None:  # a module of torch's that is missing, as has been noted
        return
    module, of = getattr(owner, "__module__", ""), getattr(owner, "__qualname__", None)
    path = f"{module}.{of}" if of is not None else str(getattr(owner, "__name__", owner))
    _noted(f"{path}.{name}", purpose, hasattr(owner, name), None, None)


def missing_names() -> dict[str, str]:
    """The names that this torch lacks, and what baechi needs them to do."""
    return dict(_missing)


def found_names() -> list[str]:
    """The names that this torch has."""
    return list(_found)


class Missing:
    """Stands for something that this torch lacks; every use raises.

    Args:
        path: its name.
        purpose: what baechi needs it to do.
    """

    def __init__(self, path: str, purpose: str) -> None:
        self._path, self._purpose = path, purpose

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise _error(self._path, self._purpose)

    __call__ = __bool__ = __iter__ = __len__ = __contains__ = __enter__ = _refuse

    def __exit__(self, *_: object) -> None: ...  # which `with` looks for before it enters


def _noted(path: str, purpose: str, present: bool, value: Any, otherwise: Any) -> Any:
    if present:
        _found.append(path)
        return value
    if path not in _missing:
        logger.warning(
            "torch %s has no %s, which baechi needs to %s: docs/tested-models.md says what works without it",
            torch.__version__,
            path,
            purpose,
        )
    _missing[path] = purpose
    return Missing(path, purpose) if otherwise is RAISES else otherwise


def _error(path: str, purpose: str) -> BaechiError:
    return BaechiError(
        f"torch {torch.__version__} has no {path}, which baechi needs to {purpose}: use a version of torch "
        "that has it (docs/tested-models.md lists those that were tried), or leave out what asks for it"
    )


def _find(path: str) -> tuple[bool, Any]:
    """Whether torch has a name, and what is there."""
    parts = path.split(".")
    found: Any = torch
    for count, part in enumerate(parts[1:], 2):
        try:
            found = getattr(found, part)
        except AttributeError:
            try:
                found = import_module(".".join(parts[:count]))
            except ImportError:
                return False, None
    return True, found
