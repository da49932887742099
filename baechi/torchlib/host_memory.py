"""The host's memory: how much is left, and how the C library gets it."""

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1
"""The names of two limits for glibc's `mallopt`."""

_SMALL_BYTES = 64 << 10
_LARGE_BYTES = 32 << 20
"""Where glibc's own adjusting of the first limit ends; that of the second one is twice as much."""

_CHOSEN = (
    ("MALLOC_MMAP_THRESHOLD_", ""),
    ("MALLOC_TRIM_THRESHOLD_", ""),
    ("GLIBC_TUNABLES", "glibc.malloc.mmap_threshold"),
    ("GLIBC_TUNABLES", "glibc.malloc.trim_threshold"),
)
"""Where users choose these limits: an environment variable, and what stands in it."""


def free_host_bytes() -> int:
    """Bytes that this process can still get; a very large number where the system does not say."""
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not on this system
        return sys.maxsize


@contextmanager
def large_memory_apart() -> Iterator[None]:
    """Within this context glibc takes large memory from the system piece by piece, and gives it back at once.

    Otherwise it comes from the heap as soon as memory as large was freed before. There tensors without
    values lie among small ones that are written, ever elsewhere, and in the end the system backs nearly all.

    What a user has chosen by environment variables stays: glibc cannot say it, so it could not be put back.
    """
    if any(variable in os.environ and name in os.environ[variable] for variable, name in _CHOSEN):
        yield
        return
    adjust = _mallopt()
    adjust(_MMAP_THRESHOLD, _SMALL_BYTES)
    try:
        yield
    finally:
        adjust(_TRIM_THRESHOLD, 2 * _LARGE_BYTES)
        adjust(_MMAP_THRESHOLD, _LARGE_BYTES)


def _mallopt() -> Callable[[int, int], object]:
    """glibc's `mallopt`; with another C library, a function that does nothing."""
    try:
        known: Callable[[int, int], object] = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # no such function; no way to ask (TypeError: on Windows)
        return lambda limit, size_bytes: None
    return known
