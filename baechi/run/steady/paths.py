"""A switch that sends every call down the full path, to compare the two."""

from collections.abc import Iterator
from contextlib import contextmanager

full_only = 0
"""In how many contexts of `full_path_only` the process is."""


@contextmanager
def full_path_only() -> Iterator[None]:
    """Within this context, no step that opens takes the fast path, in any thread."""
    global full_only
    full_only += 1
    try:
        yield
    finally:
        full_only -= 1
