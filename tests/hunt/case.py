"""A case: one model, run in some ways."""

import warnings
from collections.abc import Collection
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from time_limit import limited

import baechi
from baechi.errors import BaechiError, StreamRaceError

from . import grammar, ways
from .judge import Failure, compared, raised
from .recipe import Recipe
from .render import builder, classes_text, rendered
from .steps import Left, inputs, run
from .ways import RUNNERS, Way
from .world import World

LIMIT_S = 120.0
"""How long one run may take: what takes longer hangs."""


@dataclass(frozen=True)
class Case:
    """A model and a way.

    Args:
        recipe: the model.
        way: how it is run.
    """

    recipe: Recipe
    way: Way


@dataclass(frozen=True)
class Verdict:
    """What came of a case.

    Args:
        case: the case.
        outcome: `"passed"`, `"failed"`, `"refused"` (by an error of baechi's own) or `"plain raises"`.
        failure: what is wrong, or why it was refused.
    """

    case: Case
    outcome: str
    failure: Failure | None = None


class TakesTooLong(Exception):
    """A run hangs."""


def cases(seed: int, world: World, without: Collection[str] = ()) -> list[Case]:
    """The cases of a seed: one model, in several ways.

    Args:
        seed: which.
        world: where it runs.
        without: kinds of statements that are left out.
    """
    left_out = {*without} | ({name for name, kind in grammar.KINDS.items() if kind.draws and not world.draws})
    recipe = grammar.draw(seed, without=left_out)
    return [Case(recipe, way) for way in ways.draw(seed)]


def judged(asked: list[Case], world: World) -> list[Verdict]:
    """Run cases of one model.

    Args:
        asked: cases that share recipe, caller and mode.
        world: where they run.
    """
    recipe, first = asked[0].recipe, asked[0].way
    build = builder(recipe)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            if any(call in classes_text(rendered(recipe)) for call in ("checkpoint(", "copy.copy(")):
                run(world.home(builder(recipe, tracked=True)()), recipe, first, world)
            expected = run(world.home(build()), recipe, first, world)
        except (RuntimeError, AttributeError, NotImplementedError, TypeError) as error:
            return [Verdict(case, "plain raises", raised(error)) for case in asked]
        found = _attempt(lambda: _captured(recipe, first, world))
        if isinstance(found, Failure):
            return [_failed(case, found) for case in asked]
        return [_compared(case, expected, found, world) for case in asked]


def _captured(recipe: Recipe, way: Way, world: World) -> baechi.LayerGraph:
    model = builder(recipe)().train(way.training)
    return baechi.profile(
        model, inputs(recipe, 0), cluster=world.cluster(1), training=way.training, source="estimate"
    )


def _compared(case: Case, expected: Left, graph: baechi.LayerGraph, world: World) -> Verdict:
    def distributed() -> Left:
        way = case.way
        model = builder(case.recipe)().train(way.training)
        model, cluster = RUNNERS[way.runner](model, graph, way, world)
        with cluster if cluster.emulated and way.inside else nullcontext():
            return run(model, case.recipe, way, world)

    found = _attempt(distributed)
    if isinstance(found, Failure):
        return _failed(case, found)
    stepped, split = case.way.caller == "optimizer", case.way.runner == "split"
    failure = compared(expected, found, stepped=stepped, split=split)
    if failure is None and torch._C._len_torch_function_stack():
        failure = Failure("mode left")
    return Verdict(case, "passed" if failure is None else "failed", failure)


class _Refused(Failure):
    """An error of baechi's own."""


def _failed(case: Case, failure: Failure) -> Verdict:
    return Verdict(case, "refused" if isinstance(failure, _Refused) else "failed", failure)


def _attempt(what: Any) -> Any:
    """What a function returns, or the failure that its exception is: any type of it is a finding."""
    try:
        with limited(LIMIT_S, TakesTooLong(f"after {LIMIT_S} s")):
            return what()
    except StreamRaceError as error:
        return raised(error)
    except BaechiError as error:
        found = raised(error)
        return _Refused("refused", found.cause, found.detail)
    except Exception as error:
        return raised(error)
