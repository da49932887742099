"""The `auto` placer: all placers, orders by bottom level, then a search for the shortest predicted step.

a proof that nothing fits                     at once (`proof`)
one device, m-TOPO, m-ETF, m-SCT, chain      each as it is, and with orders by bottom level
towers, stacks, blocks                       whole (`whole_modules`)
    └─ if none fits, by memory alone         `tight`
    └─ a search from the best of them        `rounds`; or every plan, if there are few; none (at the default
    │                                        effort) where the best is near the lower bound
    └─ all in the code's order, and a search if the cluster charges the host, since waiting costs it
          └─ the best of all                 of nearly equal ones: room to spare, few cuts, so one
                                             device wins unless several are faster (`preferred`)
                └─ parts of full devices     on emptier ones, if the step stays nearly the same (`roomier`)
                      └─ functional ops      on devices of their own, where that gains (`apart`)
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from baechi.errors import PlacementError
from baechi.place.apart import with_ops_apart
from baechi.place.bottom_level import bottom_level_order
from baechi.place.evaluation import IN_TURN, Attempt, Check, Effort, Evaluated, Rehearsal, rehearsed
from baechi.place.preference import in_whole_blocks, is_roomy, preferred
from baechi.place.problem import Problem
from baechi.place.roomier import roomier
from baechi.place.tight.exact import exact
from baechi.place.tight.fit import FEW_PLACEMENTS, fit
from baechi.place.tight.proof import prove
from baechi.place.whole_modules import whole_modules
from baechi.records import Candidate, Cluster, LayerGraph, Plan

TRIED = ("single", "m-topo", "m-etf", "m-sct", "chain")

PACKED = "by memory"
"""Name of the candidate from `tight`, the start of the search if no placer found a plan."""

SIMULATIONS = 400
"""The most simulations of an exact search."""

NEAR = 1.015
"""With the default effort there is no search where a step is within this factor of the lower bound. So little
can be gained, and loading the search's compiler takes as long as all else together."""


def best(
    graph: LayerGraph,
    cluster: Cluster,
    place: Callable[[str], Plan],
    rehearse: Rehearsal,
    *,
    effort: Effort = 1,
    enough_s: float = 0.0,
) -> Plan:
    """Try the placers, improve the best, and take the plan with the shortest predicted step, nearly."""
    problem = Problem(graph, cluster)
    prove(problem)
    check = partial(rehearsed, problem, rehearse)
    tries: list[Attempt] = []
    candidates: list[Candidate] = []
    for name in TRIED:
        try:
            plan = place(name)
        except PlacementError as error:
            candidates.append(Candidate(name, note=str(error).split("\n")[0]))
            continue
        tries += _tries(problem, check, plan, name)
    whole = whole_modules(problem, check)
    if not tries:
        try:
            tries = [Attempt(PACKED, fit(problem, rehearse, thorough=effort != 0))]
        except PlacementError:
            if not whole:
                raise
            tries = list(whole)
    near_s = enough_s * NEAR if effort == 1 else enough_s
    if effort and not any([one.step_s <= near_s and is_roomy(problem, one.found) for one in whole]):
        tries += _the_best(problem, rehearse, enough_s) or _search(problem, check, tries, enough_s, effort)
    tries += [one for one in whole if one not in tries]
    if cluster.host is not None or problem.launch_rules.bind:  # waiting costs the host; not all can wait
        tries += _in_code_order(problem, check, tries, enough_s, effort)
    tries += in_whole_blocks(problem, check, tries)
    tries += roomier(problem, check, preferred(problem, tries), min([one.step_s for one in tries]))
    problem, tries = with_ops_apart(problem, rehearse, tries)
    chosen = preferred(problem, tries)
    names = cluster.names
    candidates += [
        Candidate(one.name, one.step_s, dict(zip(names, one.found.peak_bytes, strict=True)), one.note)
        for one in tries
    ]
    plan = problem.plan(f"auto ({chosen.name})", chosen.found.device_of, chosen.found.order)
    return replace(plan, candidates=tuple(candidates))


def check_effort(effort: object) -> None:
    """Refuse an invalid effort."""
    whole = isinstance(effort, int) and not isinstance(effort, bool)
    if effort != "max" and not (whole and effort >= 0):  # type: ignore[operator]
        raise ValueError(f"effort is {effort!r}: it is a whole number of at least 0, or 'max'")


def _the_best(problem: Problem, rehearse: Rehearsal, enough_s: float) -> list[Attempt]:
    """The optimal plan, if there are few placements and few simulations find it; else nothing."""
    if len(problem.cluster) ** len(problem.indexed.members) > FEW_PLACEMENTS:
        return []
    try:
        return [Attempt("exact", exact(problem, rehearse, enough_s=enough_s, most=SIMULATIONS))]
    except (PlacementError, ValueError):
        return []


def _search(
    problem: Problem,
    check: Check,
    tries: Sequence[Attempt],
    enough_s: float,
    effort: Effort,
    *,
    in_turn: bool = False,
) -> list[Attempt]:
    """The candidates that the search finds."""
    if effort == 1 and min([start.step_s for start in tries]) <= enough_s * NEAR:
        return []
    from baechi.place.search import Rounds  # the compiler that it needs takes half a second to import

    return Rounds(problem, check, tries, enough_s, in_turn=in_turn).run(effort)


def _in_code_order(
    problem: Problem, check: Check, tries: Sequence[Attempt], enough_s: float, effort: Effort
) -> list[Attempt]:
    """Placements with layers in the order in which the code reaches them, so that none waits.

    Those found so far, where that makes them faster, and what a search from them finds.
    """
    placements = {one.found.device_of: one for one in sorted(tries, key=lambda one: -one.step_s)}
    spread = [one for device_of, one in placements.items() if len(set(device_of)) > 1]
    in_turn = [check(one.found.device_of, range(len(problem.indexed))) for one in spread]
    known = [
        (Attempt(f"{one.name}{IN_TURN}", found), found.step_s < one.step_s)
        for one, found in zip(spread, in_turn, strict=True)
        if found.fits(problem)
    ]
    starts = [one for one, _ in known]
    found = _search(problem, check, starts, enough_s, effort, in_turn=True) if effort and starts else []
    return [*[one for one, gains in known if gains], *found]


def _tries(problem: Problem, check: Check, plan: Plan, name: str) -> list[Attempt]:
    """A plan as it is, and with orders by bottom level."""
    own = Evaluated.of(problem, plan)
    device_of = own.device_of
    tries = [Attempt(name, own, " ".join([candidate.note for candidate in plan.candidates]))]
    if name != "single":
        ordered = check(device_of, bottom_level_order(problem, device_of))
        if ordered.fits(problem) and ordered.step_s < own.step_s:
            tries.append(Attempt(f"{name} + bottom level", ordered))
    return tries
