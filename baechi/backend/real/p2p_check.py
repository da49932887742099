"""Each pair of devices is tested before anything is sent: a known pattern, there and compared.

Some machines corrupt peer copies between GPUs without an error (for example with the IOMMU enabled).
For such a pair all transfers go through the host.

    source --direct--> target          the pattern arrives as it was
    source --> host --> target         it does not
"""

import logging
import threading
from collections.abc import Callable

import torch

from baechi.torchlib.private.modes import without_dispatch_modes, without_torch_function

logger = logging.getLogger(__name__)

Copy = Callable[[torch.Tensor, str, str], torch.Tensor]
"""Copies a tensor from a place to a place."""

_WORDS = 2**18
_tested: dict[tuple[str, str], bool] = {}
_lock = threading.Lock()


def is_trusted(source: str, target: str, host: str, copy: Copy) -> bool:
    """Whether copies from one device to another arrive as they were sent; tested once in a process."""
    with _lock:
        if (source, target) not in _tested:
            _tested[source, target] = _arrives(source, target, host, copy)
            if not _tested[source, target]:
                logger.warning(
                    "copies from %s to %s arrive changed: everything between them goes through the host, "
                    "which is slower (peer access is broken on this machine; on Linux, try with "
                    "the IOMMU off)",
                    source,
                    target,
                )
        return _tested[source, target]


def _arrives(source: str, target: str, host: str, copy: Copy) -> bool:
    with torch.no_grad(), without_dispatch_modes(), without_torch_function():
        # no word is like its neighbours
        pattern = torch.arange(_WORDS, dtype=torch.int32, device=host) * 40_503
        arrived = copy(copy(pattern, host, source), source, target)
        return torch.equal(copy(arrived, target, host), pattern)
