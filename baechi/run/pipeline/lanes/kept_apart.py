"""What microbatches must not see of each other: what they write to modules, what they draw, what they set."""

from baechi.run.pipeline.lanes.own_state import OwnState
from baechi.run.pipeline.lanes.random_states import RandomStates
from baechi.run.pipeline.lanes.settings_apart import SettingsApart


class KeptApart:
    """The world as each microbatch knows it, and as the caller does.

    Whatever is entered and not left again, `put_back` gives the caller's world back. It may be called at any
    time, and again: so it does not matter where an error, or an exception of a signal handler, came.

    Args:
        own: what each microbatch wrote to modules.
        draws: the states of the random generators.
        settings: those of the process that each microbatch set.
    """

    def __init__(self, own: OwnState, draws: RandomStates, settings: SettingsApart) -> None:
        self.own = own
        self._draws, self._settings = draws, settings
        self._is_settled = False

    def enter(self, microbatch: int, run: int | None) -> None:
        """From now on the world is a microbatch's.

        Args:
            microbatch: its number.
            run: what it runs; None in backward, which draws from the caller's generators, as any backward.
        """
        if run is not None:
            self._settings.enter(microbatch)
            self._draws.enter(microbatch)
        self.own.enter(microbatch, run)

    def leave(self, microbatch: int, run: int | None) -> None:
        """From now on it is the caller's.

        Args:
            microbatch: the one that was entered.
            run: what it ran; None in backward.

        Raises:
            BaechiError: it wrote what microbatches share.
        """
        self.own.leave(microbatch, run)
        if run is not None:
            self._draws.leave(microbatch)
            self._settings.leave(microbatch)

    def settle(self) -> None:
        """Forward is over: what the last microbatch wrote and set stays, and generators move.

        Raises:
            BaechiError: something was written unseen.
        """
        self.own.finish()
        self._settings.settle()
        self._draws.settle()
        self._is_settled = True

    def put_back(self) -> None:
        """What was run failed: all is as before it."""
        self.own.put_back()
        if not self._is_settled:
            self._settings.put_back()
            self._draws.put_back()
