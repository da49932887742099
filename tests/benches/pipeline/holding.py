"""What must hold of emulated pipelines, beside what was measured."""

from collections.abc import Sequence

from rich.table import Table

from benches.figures import table_of
from benches.pipeline.emulated import MICROBATCHES, USUAL, Row

AIMS = {
    "transformer": 2.8,
    "bert-large": 2.8,
    "gpt2": 2.8,
    "llama-like": 2.8,
    "inception-v3": 2.5,
}
"""Four equal devices with eight microbatches take at most one device's step over this."""

_NOISE = 1e-6


def holding(rows: Sequence[Row]) -> Table:
    """What must hold, the worst figure, and whether it does.

    Args:
        rows: what was measured.
    """
    shown = table_of("What must hold", ("what", "row"), ("limit", "figure", "holds"))
    for what, figures in (
        ("chosen step over the literature's best, same stages", [row.over_textbook for row in rows]),
        ("chosen step over that of auto without microbatches", [row.over_unsplit for row in rows]),
    ):
        worst = max(figures)
        _add(shown, what, rows[figures.index(worst)], "at most 1", worst, holds=worst <= 1 + _NOISE)
    for row in rows:
        aim = AIMS.get(row.model)
        if aim is not None and row.cluster in USUAL and row.microbatches == MICROBATCHES:
            _add(
                shown,
                "step of one device over the chosen",
                row,
                f"at least {aim}",
                row.gain,
                holds=row.gain >= aim,
            )
    return shown


def _add(shown: Table, what: str, row: Row, limit: str, figure: float, *, holds: bool) -> None:
    where = f"{row.model}, {row.cluster}, m={row.microbatches}"
    shown.add_row(what, where, limit, f"{figure:.3f}", "yes" if holds else "NO")
