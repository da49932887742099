"""From a case that fails to the smallest one that fails in the same way."""

from collections.abc import Iterator
from dataclasses import replace

from .case import Case, Verdict, judged
from .recipe import NUMBERS, Recipe, Statement
from .render import classes_text, rendered
from .ways import Way
from .world import World

MOST_RUNS = 150
"""How many candidates are tried."""

PLACERS = ("random:0", "random:1")
"""Where fewer layers are left, another plan may be needed to see the failure."""

ZEROS = (0,) * NUMBERS
SIMPLEST = Way(reorder=False, training=False, steps=1)
"""What ways are simplified to, field by field."""

Body = tuple[Statement, ...]


def shrunk(verdict: Verdict, world: World) -> Verdict:
    """The smallest case found with the same signature.

    Args:
        verdict: of a case that failed.
        world: where it runs.
    """
    best, place, changed = verdict, 0, False
    tried = {_looks(best.case)}
    while len(tried) <= MOST_RUNS:
        candidates = list(_smaller(best.case))
        if place >= len(candidates):
            if not changed:
                break
            place, changed = 0, False
            continue
        candidate, looks = candidates[place], _looks(candidates[place])
        found = None if looks in tried else _still(candidate, best, world)
        tried.add(looks)
        if found is None:
            place += 1
        else:
            best, changed = found, True
    return best


def _looks(case: Case) -> tuple[str, Way, int]:
    """What two cases have in common that are the same in effect."""
    return classes_text(rendered(case.recipe)), case.way, case.recipe.rows


def _still(case: Case, like: Verdict, world: World) -> Verdict | None:
    """The case, if it fails as another does, under its own plan or under a few others."""
    assert like.failure is not None
    ways = [case.way]
    if case.recipe != like.case.recipe:
        ways += [replace(case.way, placer=placer) for placer in PLACERS if placer != case.way.placer]
    for found in judged([Case(case.recipe, way) for way in ways], world):
        if found.failure is not None and found.failure.signature == like.failure.signature:
            return found
    return None


def _smaller(case: Case) -> Iterator[Case]:
    recipe = case.recipe
    yield from _simpler_ways(case)
    width = len(recipe.body)
    while width > 1:
        width = (width + 1) // 2
        for start in range(0, len(recipe.body), width):
            body = recipe.body[:start] + recipe.body[start + width :]
            yield replace(case, recipe=replace(recipe, body=body))
        if width == 1:
            break
    for body in _shorter(recipe.body):
        yield replace(case, recipe=replace(recipe, body=body))
    for changed in _simpler_numbers(recipe):
        yield replace(case, recipe=changed)


def _shorter(body: Body) -> Iterator[Body]:
    """One statement less, or one that gives way to what is inside of it."""
    for index, each in enumerate(body):
        before, after = body[:index], body[index + 1 :]
        yield before + after
        if each.body:
            yield before + each.body + after
        for inside in _shorter(each.body):
            yield (*before, replace(each, body=inside), *after)


def _simpler_ways(case: Case) -> Iterator[Case]:
    way = case.way
    for name in ("caller", "steps", "training", "reorder", "devices", "inside"):
        simple = getattr(SIMPLEST, name)
        if getattr(way, name) != simple:
            yield replace(case, way=replace(way, **{name: simple}))
    if way.reorder == "threads":
        yield replace(case, way=replace(way, reorder="host"))
    if not way.placer.startswith("random"):
        yield replace(case, way=replace(way, placer="random:0"))
    if case.recipe.rows != 3:
        yield replace(case, recipe=replace(case.recipe, rows=3))


def _simpler_numbers(recipe: Recipe) -> Iterator[Recipe]:
    for body in _zeroed(recipe.body):
        yield replace(recipe, body=body)
    if any(recipe.outputs):
        yield replace(recipe, outputs=ZEROS)
        for index, number in enumerate(recipe.outputs):
            if number:
                yield replace(recipe, outputs=(*recipe.outputs[:index], 0, *recipe.outputs[index + 1 :]))


def _zeroed(body: Body) -> Iterator[Body]:
    for index, each in enumerate(body):
        before, after = body[:index], body[index + 1 :]
        if any(each.numbers):
            yield (*before, replace(each, numbers=ZEROS), *after)
            for place, number in enumerate(each.numbers):
                if number:
                    numbers = (*each.numbers[:place], 0, *each.numbers[place + 1 :])
                    yield (*before, replace(each, numbers=numbers), *after)
        for inside in _zeroed(each.body):
            yield (*before, replace(each, body=inside), *after)
