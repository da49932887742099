"""A thread beside a rank's script: it hears what the script cannot while it waits, or runs for long.

each 0.2 s   an error of another rank?    the script hears of it in its next message, else it is ended
             asked what this rank does?   answer
             waited beyond the limit?     ask all ranks, and tell who does not go on
"""

import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from torch.distributed import DistError

from baechi.backend.ranks.culprit import culprit
from baechi.backend.ranks.limits import LIMIT
from baechi.backend.ranks.news import News
from baechi.backend.ranks.spot import Answer, Spot
from baechi.errors import FirstError

logger = logging.getLogger(__name__)

_TICK_S = 0.2
_GRACE_S = 3.0
"""So long a script may go on after an error of another rank, before its process ends."""
_MORE_S = 1.0
"""As much longer if it waits: the end of another process may wake it."""
_STUBBORN_S = 10.0


class Wait(NamedTuple):
    """A script waits for another rank.

    Args:
        others: those of whom one is late.
        limit_s: how long it may.
        spot: makes the place that the other one has to come to.
        since_s: on the monotonic clock.
    """

    others: tuple[int, ...]
    limit_s: float
    spot: Callable[[], Spot]
    since_s: float


class Watcher:
    """Watches one rank.

    Args:
        news: of the ranks.
        rank: which process this is.
        host: its machine.

    Attributes:
        news: as given.
        host: as given.
        wait: what the script waits for; None if for nothing.
        spot: makes the place where the script is.
        met: whether the script knows of the first error.
    """

    def __init__(self, news: News, rank: int, host: str) -> None:
        self.news, self.host = news, host
        self._rank = rank
        self.wait: Wait | None = None
        self.spot: Callable[[], Spot] = Spot
        self.met = False
        self._script = threading.get_ident()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="baechi ranks", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Watch no longer."""
        self._over.set()
        self._thread.join()

    def answer(self) -> Answer:
        """What the script does now."""
        wait = self.wait
        spot = (self.spot if wait is None else wait.spot)()
        waited_s = 0.0 if wait is None else time.monotonic() - wait.since_s
        frame = sys._current_frames()[self._script]
        line = f"{frame.f_code.co_filename}, line {frame.f_lineno}, in {frame.f_code.co_name}"
        return Answer(self._rank, self.host, spot, () if wait is None else wait.others, waited_s, line)

    def culprit(self) -> FirstError | None:
        """Ask all ranks who does not go on."""
        answers = self.news.ask(self.answer())
        return culprit(self._rank, answers, self.news.ended())

    def _watch(self) -> None:
        while not self._over.wait(_TICK_S):
            try:
                self.news.answer(self.answer)
                first = self.news.first() or self._overdue()
            except DistError:  # the store is gone, with its process; a script that waits notices it itself
                return
            if first is not None:
                self._end(first)
                return

    def _overdue(self) -> FirstError | None:
        wait = self.wait
        if wait is None or time.monotonic() - wait.since_s < wait.limit_s:
            return None
        found = self.culprit()
        if self.wait is not wait:
            return None
        if found is None:
            spot = wait.spot()
            rank = self._rank if len(wait.others) > 1 else wait.others[0]
            said = f"nothing came from it for {wait.limit_s:g} s, though it waits as well: see the network"
            found = FirstError(rank, "unknown", "Lost", said, spot.step or None, spot.microbatch, spot.layer)
        return self.news.tell(found)

    def _end(self, first: FirstError) -> None:
        """End this process, if its script does not get to know the error by itself."""
        begun_s = time.monotonic()
        while not self.met:
            grace_s = 0.0 if first.rank == self._rank else _GRACE_S + _MORE_S * (self.wait is not None)
            if time.monotonic() - begun_s >= grace_s:
                break
            if self._over.wait(_TICK_S / 4):
                return
        if self.met:
            return
        stack = "".join(traceback.format_stack(sys._current_frames()[self._script]))
        logger.error(
            "rank %d is ended (SIGTERM): the step was ended by %s\n%s sets the limit. The rank is in\n%s",
            self._rank,
            first,
            LIMIT,
            stack,
        )
        with suppress(DistError):
            self.news.wait_until_heard()  # the store may go with this process
        os.kill(os.getpid(), signal.SIGTERM)
        if not self._over.wait(_STUBBORN_S):
            os.kill(os.getpid(), signal.SIGKILL)
