"""Draws recipes: a seed, a model."""

from collections.abc import Collection
from random import Random

from .recipe import NUMBERS, Recipe, Statement
from .statements import KINDS

SIZES = (3, 10)
"""How many statements a model has, at the top."""

DEPTH = 2
"""How deep statements nest."""


def draw(seed: int, *, without: Collection[str] = ()) -> Recipe:
    """A recipe.

    Args:
        seed: equal seeds give equal recipes.
        without: kinds of statements that are left out.
    """
    chance = Random(seed)
    body = _body(chance, chance.randint(*SIZES), DEPTH, without)
    return Recipe(body, _numbers(chance), seed, chance.choice((3, 3, 5)))


def _body(chance: Random, count: int, depth: int, without: Collection[str]) -> tuple[Statement, ...]:
    names = [name for name, kind in KINDS.items() if name not in without and (depth or not kind.has_body)]
    kinds = chance.choices(names, [KINDS[name].weight for name in names], k=count)
    return tuple(_statement(chance, kind, depth, without) for kind in kinds)


def _statement(chance: Random, kind: str, depth: int, without: Collection[str]) -> Statement:
    numbers = _numbers(chance)
    inside = KINDS[kind].has_body
    return Statement(kind, numbers, _body(chance, chance.randint(1, 4), depth - 1, without) if inside else ())


def _numbers(chance: Random) -> tuple[int, ...]:
    return tuple(chance.randrange(60) for _ in range(NUMBERS))
