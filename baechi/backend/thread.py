"""A thread that does not keep the program alive."""

import threading
from collections.abc import Callable


def started(function: Callable[[], None]) -> Callable[[], None]:
    """Run a function in a thread of its own."""
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    return thread.join
