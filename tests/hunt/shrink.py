"""From a case that fails to the smallest one that fails in the same way."""

from collections.abc import Iterator
from dataclasses import replace

from .case import Case, Verdict, judged
from .recipe import NUMBERS, Recipe, Statement
from .world import World

MOST_RUNS = 400
"""How many candidates are tried."""

PLACERS = tuple(f"random:{seed}" for seed in range(4))
"""Where fewer layers are left, another plan may be needed to see the failure."""

ZEROS = (0,) * NUMBERS
Body = tuple[Statement, ...]


def shrunk(verdict: Verdict, world: World) -> Verdict:
    """The smallest case found with the same signature.

    Args:
        verdict: of a case that failed.
        world: where it runs.
    """
    best, runs, again = verdict, 0, True
    while again:
        again = False
        for candidate in _smaller(best.case):
            runs += 1
            if runs > MOST_RUNS:
                return best
            found = _still(candidate, best, world)
            if found is not None:
                best, again = found, True
                break
    return best


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
    size = len(recipe.body)
    width = size
    while width > 1:
        width = (width + 1) // 2
        for start in range(0, size, width):
            body = recipe.body[:start] + recipe.body[start + width :]
            yield replace(case, recipe=replace(recipe, body=body))
    for body in _shorter(recipe.body):
        yield replace(case, recipe=replace(recipe, body=body))
    for simple in _simpler_ways(case):
        yield simple
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
    simpler = {
        "caller": "plain",
        "steps": 1,
        "devices": 2,
        "inside": True,
        "training": False,
        "reorder": False,
    }
    for name, value in simpler.items():
        if getattr(way, name) != value:
            yield replace(case, way=replace(way, **{name: value}))
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
                for smaller in {0, 1, 2} & set(range(number)):
                    numbers = (*each.numbers[:place], smaller, *each.numbers[place + 1 :])
                    yield (*before, replace(each, numbers=numbers), *after)
        for inside in _zeroed(each.body):
            yield (*before, replace(each, body=inside), *after)
