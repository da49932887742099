"""How long a rank waits for another one before it asks who is late."""

import os

LIMIT = "BAECHI_RANKS_LIMIT_S"
"""The environment variable with the seconds after which a rank that waits for another one gives up."""

_LIMIT_S = 600.0
_FLOOR_S = 30.0
_TIMES = 10
"""Within a step a rank may wait as long as so many steps take."""


def limit_s() -> float:
    """How long a rank waits where others may run code of the user, or compile."""
    return _said_s() or _LIMIT_S


def limit_within_s(step_s: float) -> float:
    """How long it waits within a step, where others run programs only."""
    return _said_s() or max(_FLOOR_S, _TIMES * step_s)


def _said_s() -> float | None:
    said = os.environ.get(LIMIT, "")
    if not said:
        return None
    try:
        found = float(said)
    except ValueError:
        found = 0.0
    if not found > 0:
        raise ValueError(f"{LIMIT} is {said!r}: seconds that a rank waits for another one, above 0")
    return found
