"""Two plans or pipelines, side by side."""

from pathlib import Path

from baechi.records.pipeline import Pipeline
from baechi.records.plan import Plan
from baechi.report.difference import Difference
from baechi.report.facts import Facts
from baechi.report.pipeline.facts import PipelineFacts
from baechi.verbs.given import PlanLike, opened, read_plan


def compare(one: PlanLike | Pipeline, other: PlanLike | Pipeline) -> Difference:
    """Lay two plans side by side: steps, what bounds them, how full devices get, what lies elsewhere.

    Args:
        one: a plan or pipeline, such as `plan_of` returns, or the path of its file. Of a pipeline, step and
            peaks are those of the whole batch.
        other: another one.

    Returns:
        The difference: `print` shows its sentence, `tables()` and `to_json()` give all of it.

    Raises:
        TypeError: something else than a plan, a pipeline or a path is given.
        FileNotFoundError: there is no such file.
        RecordError: a file holds no plan.
    """
    return Difference(_facts(one), _facts(other), _names(one, other))


def _facts(plan: PlanLike | Pipeline) -> Facts | PipelineFacts:
    found = opened(plan)
    return PipelineFacts(found) if isinstance(found, Pipeline) else Facts(read_plan(found))


def _names(one: PlanLike | Pipeline, other: PlanLike | Pipeline) -> tuple[str, str]:
    """What two plans are called: files as short as tells them apart, others by their placers."""
    first, second = _name(one), _name(other)
    short = Path(first).stem, Path(second).stem
    if short[0] != short[1]:
        return short
    return (first, second) if first != second else (first, f"{second} again")


def _name(plan: PlanLike | Pipeline) -> str:
    if isinstance(plan, Pipeline):
        return f"{plan.placer} in {plan.microbatches} microbatches"
    return plan.placer if isinstance(plan, Plan) else str(plan)
