"""A debugging switch that makes all layers launch in the code's order."""

import os

VARIABLE = "BAECHI_REORDER"


def reordering_is_off() -> bool:
    """Whether the environment turns reordering off for all models (`BAECHI_REORDER=0`)."""
    return os.environ.get(VARIABLE, "1").strip().lower() in ("0", "false", "off", "no")
