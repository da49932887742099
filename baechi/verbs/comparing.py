"""Two plans, side by side."""

from pathlib import Path

from baechi.records.plan import Plan
from baechi.report.difference import Difference
from baechi.report.facts import Facts
from baechi.verbs.given import PlanLike, read_plan


def compare(one: PlanLike, other: PlanLike) -> Difference:
    """Lay two plans side by side: steps, what bounds them, how full devices get, what lies elsewhere.

    Args:
        one: a plan, or the path of its file.
        other: another one.

    Returns:
        The difference: `print` shows its sentence, `tables()` and `to_json()` give all of it.

    Raises:
        TypeError: something else than a plan or a path is given.
        FileNotFoundError: there is no such file.
        RecordError: a file holds no plan.
    """
    return Difference(Facts(read_plan(one)), Facts(read_plan(other)), _names(one, other))


def _names(one: PlanLike, other: PlanLike) -> tuple[str, str]:
    """What two plans are called: files as short as tells them apart, others by their placers."""
    first, second = _name(one), _name(other)
    short = Path(first).stem, Path(second).stem
    if short[0] != short[1]:
        return short
    return (first, second) if first != second else (first, f"{second} again")


def _name(plan: PlanLike) -> str:
    return plan.placer if isinstance(plan, Plan) else str(plan)
