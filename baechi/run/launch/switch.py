"""The switch for debugging: whether layers may launch in another order than the code's."""

import os

VARIABLE = "BAECHI_REORDER"


def reordering_is_off() -> bool:
    """Whether the environment says that no model reorders (`BAECHI_REORDER=0`)."""
    return os.environ.get(VARIABLE, "1").strip().lower() in ("0", "false", "off", "no")
