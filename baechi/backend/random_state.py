"""The states of the random generators, kept while something runs that must leave no trace."""

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def random_state_kept() -> Iterator[None]:
    """Put the generators of torch (CPU and CUDA), Python and numpy back afterwards."""
    python = random.getstate()
    numpy = sys.modules.get("numpy")
    numpy_state = numpy.random.get_state() if numpy else None
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices):
        try:
            yield
        finally:
            random.setstate(python)
            if numpy:
                numpy.random.set_state(numpy_state)
