"""Functional ops on devices of their own, where that makes the step shorter.

    by rule    a on gpu0 ─┐ b
               b on gpu1 ─┴─▶ cat on gpu1 ──2 b──▶ c on gpu2     two hops, one of double size
    apart      a on gpu0 ──b──┐
               b on gpu1 ──b──┴▶ cat, c on gpu2                  one hop each

Placers put a functional op beside the input that it follows (`LayerGraph.groups`). Then each one that reads
or feeds other devices is tried there, alone and with the ops that follow it. A move is kept if it makes the
simulated step shorter, fits, and sends no more than before.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from baechi.cost.indexed_graph import FROM_HOST
from baechi.place.bottom_level import bottom_level_order
from baechi.place.evaluation import Attempt, Check, Evaluated, Rehearsal, rehearsed
from baechi.place.problem import ANYWHERE, Problem
from baechi.records import Plan

SIMULATED = 40_000
"""Simulations times layers, at most."""

SHORTER, WORTH = 0.9999, 0.998
"""A move is kept if the step is at most this part of what it was; all of them, if it is at most this part of
what it was before them. Less is within the error of a prediction."""

BEGUN, WITHIN = 3, 1.2
"""How many placements are improved at most: the best ones, with steps within this factor of the shortest."""


def with_ops_apart(
    problem: Problem, rehearse: Rehearsal, tries: Sequence[Attempt]
) -> tuple[Problem, list[Attempt]]:
    """Plans, and the best of them with functional ops where these make the step shorter."""
    if not problem.graph.says("follows") or len(problem.cluster) < 2:
        return problem, [*tries]
    apart = Problem(problem.graph, problem.cluster, apart=True)
    check = partial(rehearsed, apart, rehearse)
    same = [replace(one, found=_regrouped(problem, apart, one.found)) for one in tries]
    limit_s = min([one.step_s for one in same]) * WITHIN
    by_step = sorted([one for one in same if one.step_s <= limit_s], key=lambda one: -one.step_s)
    placements = {one.found.device_of: one for one in by_step if len(set(one.found.device_of)) > 1}
    starts = sorted(placements.values(), key=lambda one: one.step_s)[:BEGUN]
    moved = [(one, placed_apart(apart, check, one.found, SIMULATED // len(starts))) for one in starts]
    better = [
        Attempt(f"{one.name} + functional ops", found) for one, found in moved if found is not one.found
    ]
    return apart, [*same, *better]


def plan_with_ops_apart(plan: Plan, rehearse: Rehearsal) -> Plan:
    """A plan with functional ops where these make the step shorter."""
    if len(plan.devices_used) < 2 or not plan.graph.says("follows"):
        return plan
    problem = Problem(plan.graph, plan.cluster, apart=True)
    own = Evaluated.of(problem, plan)
    found = placed_apart(problem, partial(rehearsed, problem, rehearse), own, SIMULATED)
    if found is own:
        return plan
    return replace(problem.plan(plan.placer, found.device_of, found.order), candidates=plan.candidates)


def _regrouped(problem: Problem, apart: Problem, found: Evaluated) -> Evaluated:
    """A placement by groups of one problem, by those of the other."""
    on = [found.device_of[group] for group in problem.indexed.group_of]
    return replace(found, device_of=tuple([on[members[0]] for members in apart.indexed.members]))


def placed_apart(problem: Problem, check: Check, found: Evaluated, simulated: int) -> Evaluated:
    """Move functional ops, one after the other, as long as the step gets shorter."""
    left = simulated // max(1, len(problem.indexed))
    bundles = _bundles(problem)
    before, start = None, found
    while found is not before:
        before = found
        for bundle in bundles:
            for device in _near(problem, found.device_of, bundle):
                moved = [device if group in bundle else on for group, on in enumerate(found.device_of)]
                if left <= 0 or _sent_s(problem, moved, bundle) > _sent_s(problem, found.device_of, bundle):
                    continue
                left -= 1
                tried = check(moved, found.order)
                if tried.fits(problem) and tried.step_s <= found.step_s * SHORTER:
                    found = tried
    if found is not start:
        ordered = check(found.device_of, bottom_level_order(problem, found.device_of))
        if ordered.fits(problem) and ordered.step_s < found.step_s:
            found = ordered
    return found if found.step_s <= start.step_s * WORTH else start


def _bundles(problem: Problem) -> list[frozenset[int]]:
    """What may move together: each group with a functional op that follows another group; then with all
    groups that follow it."""
    indexed = problem.indexed
    index = {name: layer for layer, name in enumerate(indexed.names)}
    followers: dict[int, set[int]] = {}
    free: dict[int, None] = {}
    for layer, costs in enumerate(indexed.costs):
        if costs.follows is not None and problem.pins[indexed.group_of[layer]] == ANYWHERE:
            free[indexed.group_of[layer]] = None
            followers.setdefault(indexed.group_of[index[costs.follows]], set()).add(indexed.group_of[layer])
    bundles: dict[frozenset[int], None] = {}
    for group in free:
        bundles[frozenset([group])] = None
        together, waiting = {group}, [group]
        while waiting:
            more = followers.get(waiting.pop(), set()) - together
            together |= more
            waiting += more
        bundles[frozenset(together)] = None
    return list(bundles)


def _near(problem: Problem, device_of: Sequence[int], bundle: frozenset[int]) -> Iterator[int]:
    """The other devices that a bundle exchanges tensors with."""
    here = {device_of[group] for group in bundle}
    near = {device_of[other] for group in bundle for other in problem.neighbours[group]} - here
    return iter(sorted(near) if len(here) == 1 else [])


def _sent_s(problem: Problem, device_of: Sequence[int], bundle: frozenset[int]) -> float:
    """Seconds of all transfers of the tensors that a bundle reads or makes."""
    indexed = problem.indexed
    tensors = {tensor for group in bundle for tensor in problem.group_reads[group]}
    tensors |= {tensor for group in bundle for tensor in problem.group_makes[group]}
    seconds = 0.0
    for tensor in sorted(tensors):
        maker = indexed.source[tensor]
        source = problem.host if maker == FROM_HOST else device_of[indexed.group_of[maker]]
        targets = {device_of[indexed.group_of[reader]] for reader in indexed.consumers[tensor]} - {source}
        seconds += sum([problem.travel_s(source, target, indexed.size_bytes[tensor]) for target in targets])
    return seconds
