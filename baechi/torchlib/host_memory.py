"""How much memory the host has left."""

import os
import sys


def free_host_bytes() -> int:
    """Bytes that this process can still get; a very large number where the system does not say."""
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not on this system
        return sys.maxsize
