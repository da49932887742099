"""When streams are through with memory that nobody holds any more."""

from typing import NamedTuple


class Use(NamedTuple):
    """The newest work of the streams that use some memory.

    Memory comes back to a device when the thread that issues there is past `until_s`, and all threads
    are past `ready_s`: until then one of them may still issue something that runs before that work.

    Args:
        until_s: when it is over.
        ready_s: when it could begin, but for what else is queued.
    """

    until_s: float = 0.0
    ready_s: float = 0.0

    def beside(self, *others: "Use") -> "Use":
        """All of them together.

        Args:
            *others: the other ones.
        """
        uses = (self, *others)
        return Use(max([use.until_s for use in uses]), max([use.ready_s for use in uses]))


OVER = Use()
"""Only the device's own stream uses it, which runs in order: it comes back at once."""
