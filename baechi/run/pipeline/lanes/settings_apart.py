"""Settings of the process that the model's code sets are the microbatch's own.

    lane 0   with sdpa_kernel(MATH): ─┐ stops               ─▶ goes on with MATH, leaves it
    lane 1                            └▶ the caller's kernels

Without this the second microbatch would take what the first one set for the caller's, and set that when it
leaves its own.
"""

from baechi.torchlib.process_settings import process_settings, set_process_settings


class SettingsApart:
    """Settings of the process, by microbatch.

    Args:
        microbatches: how many.
    """

    def __init__(self, microbatches: int) -> None:
        self._callers = process_settings()
        self._own = [self._callers] * microbatches

    def enter(self, microbatch: int) -> None:
        """From now on a microbatch's hold.

        Args:
            microbatch: its number.
        """
        set_process_settings(self._own[microbatch])

    def leave(self, microbatch: int) -> None:
        """From now on the caller's hold.

        Args:
            microbatch: the one that was entered.
        """
        self._own[microbatch] = process_settings()
        set_process_settings(self._callers)

    def settle(self) -> None:
        """The step is over: what the last microbatch left set stays."""
        set_process_settings(self._own[-1])

    def put_back(self) -> None:
        """The step failed: the caller's hold, as before it."""
        set_process_settings(self._callers)
