"""Whether autocast is on for any type of device."""

from collections.abc import Callable

from baechi.torchlib.private.lookup import named

casts_anywhere: Callable[[], bool] = named(
    "torch._C._is_any_autocast_enabled", "see at once that nothing is cast", lambda: True
)
"""A torch without it is asked type by type."""
