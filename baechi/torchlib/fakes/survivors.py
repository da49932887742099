"""Valueless tensors that outlive a dry run: in a cache, code would take them for real values later.

function caches (`functools.lru_cache`)   are cleared
everything else outside of the model      is overwritten: floating-point numbers become NaN, integers -1
"""

import gc
import logging
import sys

import torch

from baechi.torchlib.fakes.leaks import clear_caches
from baechi.torchlib.fakes.valueless import MADE, remember_values

logger = logging.getLogger(__name__)

_NAN_BYTE = 255
"""Floating-point numbers of such bytes are NaN, and integers are -1, which is no index of an embedding."""

_MOST_BYTES = 1 << 20
"""Of a larger one, only the beginning: the system never gave it its memory, and may not have so much."""


def collect_survivors() -> None:
    """Run the garbage collector, if valueless tensors are alive. For where it has few objects to look at."""
    if MADE:
        gc.collect()


def spoil_survivors() -> None:
    """Let no code take a valueless tensor for real values, after a dry run."""
    remember_values()
    if MADE:
        clear_caches()
    if MADE:
        gc.collect()
    for storage in list(MADE):
        whole = torch.empty(0, dtype=torch.uint8).set_(storage)
        whole[:_MOST_BYTES].fill_(_NAN_BYTE)
    if MADE and sys.exc_info()[1] is None:  # else what the failed code held is in the error's traceback
        logger.warning(
            "%d tensors of a dry run are still held by something outside the model, and have no values: they "
            "are NaN now; clear the cache that keeps them",
            len(MADE),
        )
    MADE.clear()
