"""A switch that sends every call down the full path, to compare the two."""

from collections.abc import Iterator
from contextlib import contextmanager

_full_only = 0


@contextmanager
def full_path_only() -> Iterator[None]:
    """Within this context, no step of any thread takes the short way."""
    global _full_only
    _full_only += 1
    try:
        yield
    finally:
        _full_only -= 1


def short_way_is_open() -> bool:
    """Whether a step that opens now may take the short way."""
    return not _full_only
