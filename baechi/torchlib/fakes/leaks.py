"""Fake tensors that outlive a run with them: in a cache they would answer the model's next real call."""

import functools
import gc
import logging
import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch

from baechi.torchlib.fakes.valueless import is_valueless
from baechi.torchlib.private.fakes import FakeTensor, FakeTensorMode

logger = logging.getLogger(__name__)


def clear_leftovers(survivors: Callable[[], int]) -> None:
    """Clear the function caches (`functools.lru_cache`) that keep fake tensors."""
    if not survivors():
        return
    gc.collect()
    if not survivors():
        return
    clear_caches()
    if survivors():
        logger.warning(
            "%d fake tensors are still held by something outside the model: if the model meets a "
            "FakeTensor later, clear the cache that keeps it",
            survivors(),
        )


def forget_originals(mode: FakeTensorMode) -> None:
    """Let a fake mode that is over refer to no real tensor, not weakly either.

    It is a cycle of objects, and the collector may come late; meanwhile `torch.utils.swap_tensors`
    refuses tensors with weak references.
    """
    describer = mode.fake_tensor_converter.meta_converter.describer
    # `clear` of these would look at each original once more. In torch 2.9 that breaks a storage whose Python
    # object only torch holds, and the process dies later. So the references themselves are dropped.
    describer.lookup_tensor.data.clear()
    describer.lookup_storage.data.clear()


def clear_caches() -> None:
    """Clear every function cache that keeps a fake tensor, or a valueless one."""
    _known.update(at=len(sys.modules), caches=_caches())
    clear_known_caches()


def clear_known_caches() -> None:
    """Clear those that keep a fake tensor among the caches that there were when modules were last imported.

    This is for the middle of a step: it looks through the process once, and collects no garbage.
    """
    if _known["at"] != len(sys.modules):
        _known.update(at=len(sys.modules), caches=_caches())
    for reference in _known["caches"]:
        cache = reference()
        if cache is not None and _keeps_fakes(cache):
            cache.cache_clear()


_known: dict[str, Any] = {"at": -1, "caches": []}


def _caches() -> list[Any]:
    return [weakref.ref(o) for o in gc.get_objects() if type(o) is functools._lru_cache_wrapper]


def _keeps_fakes(cache: Any) -> bool:
    kept = gc.get_referents(cache)
    kept += [value for table in kept if isinstance(table, dict) for value in table.values()]
    kept += [item for value in kept if isinstance(value, (tuple, list)) for item in value]
    return any(type(value) is FakeTensor or _is_valueless(value) for value in kept)


def _is_valueless(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and is_valueless(value)
