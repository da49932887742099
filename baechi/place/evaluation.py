"""A placement with its predicted step and peaks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from baechi.place.bottom_level import bottom_level_order
from baechi.place.problem import Problem
from baechi.records import Plan

IN_TURN = " + code's order"
"""The end of the name of a candidate whose layers launch in the order in which the code reaches them."""

Check = Callable[[Sequence[int], Sequence[int]], "Evaluated"]
"""Simulates a placement, by group, with an order; it may need more memory than there is."""

Effort = int | Literal["max"]
"""How long to search; see `baechi.place.auto`."""

Rehearsal = Callable[[Sequence[int], Sequence[int]], tuple[float, list[int]]]
"""Predicts the step of a placement: seconds, and the peak of each device. By layer: device, place."""


@dataclass(frozen=True, slots=True)
class Evaluated:
    """A placement with its predicted step and peaks.

    Args:
        device_of: by group, its device.
        order: layers.
        step_s: the predicted step.
        peak_bytes: by device.
    """

    device_of: tuple[int, ...]
    order: tuple[int, ...]
    step_s: float
    peak_bytes: tuple[int, ...]

    @classmethod
    def of(cls, problem: Problem, plan: Plan) -> "Evaluated":
        """A plan, with the step and the peaks of its timeline."""
        indexed, devices = problem.indexed, {name: number for number, name in enumerate(plan.cluster.names)}
        index = {layer: number for number, layer in enumerate(indexed.names)}
        device_of = [devices[plan.device_of[indexed.names[members[0]]]] for members in indexed.members]
        order, timeline = tuple([index[layer] for layer in plan.order]), plan.timeline
        peaks = tuple([timeline.peak_bytes[device] for device in plan.cluster.names])
        return cls(tuple(device_of), order, timeline.makespan_s, peaks)

    def fits(self, problem: Problem) -> bool:
        """Whether it fits in every device's memory."""
        return all([peak <= limit for peak, limit in zip(self.peak_bytes, problem.memory_bytes, strict=True)])


@dataclass(frozen=True)
class Attempt:
    """A candidate.

    Args:
        name: the placer or search that made it.
        found: the placement, evaluated.
        note: anything unusual that happened, for the user.
    """

    name: str
    found: Evaluated
    note: str = ""

    @property
    def step_s(self) -> float:
        """Its predicted step."""
        return self.found.step_s


def evaluate(
    problem: Problem, rehearse: Rehearsal, device_of: Sequence[int], order: Sequence[int] | None = None
) -> Evaluated | None:
    """Simulate a placement, and return it only if it fits."""
    found = rehearsed(
        problem, rehearse, device_of, bottom_level_order(problem, device_of) if order is None else order
    )
    return found if found.fits(problem) else None


def rehearsed(
    problem: Problem, rehearse: Rehearsal, device_of: Sequence[int], order: Sequence[int]
) -> Evaluated:
    """Simulate a placement, whether it fits or not."""
    order = problem.launch_rules.launchable(order)
    place = [0] * len(order)
    for index, layer in enumerate(order):
        place[layer] = index
    step_s, peaks = rehearse([device_of[group] for group in problem.indexed.group_of], place)
    return Evaluated(tuple(device_of), tuple(order), step_s, tuple(peaks))
