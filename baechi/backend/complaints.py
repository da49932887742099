"""Torch's log while something runs with fake tensors."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def complaints_muted() -> Iterator[None]:
    """An operator that refuses fake tensors is logged as an error by torch; here it is expected."""
    torch_log = logging.getLogger("torch._subclasses.fake_tensor")
    before = torch_log.disabled
    torch_log.disabled = True
    try:
        yield
    finally:
        torch_log.disabled = before
