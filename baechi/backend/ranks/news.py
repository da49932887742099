"""What ranks say to each other by torch's store: the first error, what each does, and that it ends."""

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from baechi.backend.ranks.spot import Answer, Spot
from baechi.errors import FirstError
from baechi.torchlib.private.groups import default_store

_ERROR, _HEARD, _ASKED, _ENDED = "baechi/first_error", "baechi/heard", "baechi/asked", "baechi/ended"
_POLL_S = 0.05
_HEARD_S = 1.0
"""How long a rank that tells of an error stays until the others know it: the store may go with it."""
_ANSWERS_S = 1.5


class News:
    """A rank's view of the store, for any thread. A method is over at once, or says how long it takes.

    A method raises torch's `DistError` if the store is gone.

    Args:
        rank: which process this is.
        size: how many there are.

    Attributes:
        known: the first error of all ranks, once it was heard.
    """

    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._size = rank, size
        self._kept = default_store()  # if this process has the store, it lasts as long as this
        self._store: Any = self._kept.clone()  # others wait on the default store, and block it
        self._answered = self._asked()
        self.known: FirstError | None = None

    def __len__(self) -> int:
        return self._size

    def tell(self, error: FirstError) -> FirstError:
        """Tell of an error; returns the first one, which is another rank's if that was earlier."""
        return self._hear(self._store.compare_set(_ERROR, "", json.dumps(asdict(error))))

    def first(self) -> FirstError | None:
        """The first error of all ranks; None if there is none."""
        if self.known is None and self._store.check([_ERROR]):
            self._hear(self._store.get(_ERROR))
        return self.known

    def _hear(self, said: bytes) -> FirstError:
        is_new, self.known = self.known is None, FirstError(**json.loads(said))
        if is_new:
            self._store.add(_HEARD, 1)  # from now on the store may go
        return self.known

    def wait_until_heard(self) -> None:
        """Wait until all ranks know the first error, for a second at most: some may be lost."""
        self._wait_until(lambda: self._store.add(_HEARD, 0) >= self._size, _HEARD_S)

    def end(self) -> None:
        """Say that this rank's script ends."""
        self._store.set(f"{_ENDED}/{self._rank}", "")

    def wait_until_ended(self) -> None:
        """Wait until all ranks' scripts end, for a second at most."""
        self._wait_until(lambda: len(self.ended()) == self._size, _HEARD_S)

    def ended(self) -> list[int]:
        """The ranks whose scripts said that they end."""
        return [rank for rank in range(self._size) if self._store.check([f"{_ENDED}/{rank}"])]

    def ask(self, mine: Answer) -> dict[int, Answer]:
        """What all ranks do, by rank; who does not say so within 1.5 seconds is missing."""
        number = self._store.add(_ASKED, 1)
        found = {self._rank: mine}

        def complete() -> bool:
            for rank in range(self._size):
                key = f"{_ASKED}/{number}/{rank}"
                if rank not in found and self._store.check([key]):
                    said = json.loads(self._store.get(key))
                    found[rank] = Answer(
                        **{**said, "spot": Spot(**said["spot"]), "waits_for": tuple(said["waits_for"])}
                    )
            silent = {rank for rank in range(self._size) if rank not in found}
            return silent.issubset(self.ended()) or self.first() is not None

        self._wait_until(complete, _ANSWERS_S)
        return found

    def answer(self, make: Callable[[], Answer]) -> None:
        """Answer who asked since the last time."""
        for number in range(self._answered + 1, self._asked() + 1):
            self._answered = number
            self._store.set(f"{_ASKED}/{number}/{self._rank}", json.dumps(asdict(make())))

    def _asked(self) -> int:
        found: int = self._store.add(_ASKED, 0)
        return found

    @staticmethod
    def _wait_until(holds: Callable[[], bool], most_s: float) -> None:
        until = time.monotonic() + most_s
        while not holds() and time.monotonic() < until:
            time.sleep(_POLL_S)
