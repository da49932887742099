"""What a model's code does in a step, though not while it is captured: a plan cannot know of it."""

from collections.abc import Iterator
from contextlib import contextmanager

_now: list[None] = []


@contextmanager
def capturing() -> Iterator[None]:
    """Models are captured in here."""
    _now.append(None)
    try:
        yield
    finally:
        _now.pop()


def captured() -> bool:
    """Whether a model is captured now."""
    return bool(_now)
