"""When streams have finished with memory that was released."""

from typing import NamedTuple


class Use(NamedTuple):
    """The newest work of the streams that use some memory.

    Memory is reusable when the device's issuing thread is past `until_s` and all threads are past
    `ready_s`. Before `ready_s` a slower thread may still issue work that runs ahead of it and delays it.

    Args:
        until_s: when the work ends.
        ready_s: when it could begin if no other work were queued before it.
    """

    until_s: float = 0.0
    ready_s: float = 0.0

    def beside(self, *others: "Use") -> "Use":
        """The use that ends with the last of several.

        Args:
            *others: the other uses.
        """
        uses = (self, *others)
        return Use(max([use.until_s for use in uses]), max([use.ready_s for use in uses]))


OVER = Use()
"""Only the device's own stream uses the memory. A stream runs in order, so it is reusable at once."""
