"""The longest ways through a step in microbatches, by task: to its start, and from its start to the end.

    head ─▶ [task] ─▶ ... ─▶ end        a way goes on by data, by transfers, by the code on a device,
    └──────┘└─── tail ─────────┘        and to the same unit of the next microbatch

Devices and links are taken to be free. A task is its number: microbatch by microbatch, runs before stages.

What one unit sends to one device goes one after the other. Bounds mind that (`in_turn`). Rules and drafts do
not: with it, they find other orders and no better ones.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf

from baechi.records.pipeline import Units
from baechi.simulate.pipeline.costs import PipelineCosts, Send


@dataclass(frozen=True)
class Ways:
    """By task, seconds.

    Args:
        own_s: what it takes on its device.
        heads_s: the longest way to its start.
        tails_s: the longest way from its start to the end, with what it takes.
    """

    own_s: list[float]
    heads_s: list[float]
    tails_s: list[float]


def ways(costs: PipelineCosts, microbatches: int, *, in_turn: bool = False) -> Ways:
    """The longest ways of all tasks."""
    units, runs = costs.units, len(costs.forward_s)
    ordered = [*range(runs), *[runs + stage for stage in units.backward_order if units.training]]
    after, width = followers_of(costs, in_turn=in_turn), len(ordered)
    own_s = by_task([*costs.forward_s, *costs.backward_s], costs.add_s, units, microbatches)
    heads_s = [*uploaded_s(costs), *[0.0] * (width - runs)] * microbatches
    bases = [microbatch * width for microbatch in range(microbatches)]
    for base in bases:
        for unit in ordered:
            end_s = heads_s[base + unit] + own_s[base + unit]
            for follower, travel_s in after[unit]:
                heads_s[base + follower] = max(heads_s[base + follower], end_s + travel_s)
            if base != bases[-1]:
                heads_s[base + width + unit] = max(heads_s[base + width + unit], end_s)
    last_s, tails_s = fetched_s(costs, in_turn=in_turn), list(own_s)
    for base in reversed(bases):
        for unit in reversed(ordered):
            rest_s = [travel_s + tails_s[base + follower] for follower, travel_s in after[unit]]
            rest_s += [tails_s[base + width + unit]] if base != bases[-1] else []
            rest_s += [last_s[unit]] if unit < runs else []
            tails_s[base + unit] += max([0.0, *rest_s])
    return Ways(own_s, heads_s, tails_s)


def followers_of(costs: PipelineCosts, *, in_turn: bool = False) -> list[list[tuple[int, float]]]:
    """By unit, those of its microbatch that read what it makes, and how long after its end they can begin.

    That is before the end if it goes on with other work, or they begin with other work. Then the time is
    negative.
    """
    runs = len(costs.forward_s)
    found = [[(later, 0.0) for later in at_once] for at_once in waiting_for_ends(costs)]
    for unit, arrivals in enumerate(_arrivals(costs, in_turn)):
        base = runs if unit >= runs else 0
        for send, there_s in arrivals:
            readers = zip(send.readers, send.early_s, strict=True)
            found[unit] += [(base + reader, there_s - early_s) for reader, early_s in readers]
    return found


def _arrivals(costs: PipelineCosts, in_turn: bool) -> list[list[tuple[Send, float]]]:
    """By unit, what it sends, and how long after its end that is there at the earliest."""
    runs = len(costs.forward_s)
    found: list[list[tuple[Send, float]]] = []
    for unit, at_end in enumerate(costs.sends_at_end[: len(costs.units.unit_devices)]):
        free_s: dict[int, float] = {}
        found.append([])
        for send, _ in [*(costs.sends_before_end[unit] if unit < runs else ()), *at_end]:  # as they are made
            there_s = max(-send.rest_s, free_s.get(send.target, -inf)) + send.duration_s
            found[-1].append((send, there_s))
            if in_turn:
                free_s[send.target] = there_s
    return found


def waiting_for_ends(costs: PipelineCosts) -> list[list[int]]:
    """By unit, those of its microbatch that wait for its end and for no transfer: by data, or by the code."""
    units, runs = costs.units, len(costs.forward_s)
    found: list[list[int]] = [[] for _ in units.unit_devices]
    for run, before in enumerate(costs.forward_after):
        for earlier in before:
            found[earlier].append(run)
    for stage, before in enumerate(costs.backward_after) if units.training else ():
        for run in units.runs_of[stage]:
            found[run].append(runs + stage)
        for earlier in before:
            found[runs + earlier].append(runs + stage)
    for earlier, later in in_code_order(costs):
        found[earlier].append(later)
    return found


def arrivals_of(costs: PipelineCosts) -> Iterator[tuple[int, float]]:
    """What units wait for: of several transfers to the same readers, the last."""
    units, runs = costs.units, len(costs.forward_s)
    for unit, sends in enumerate((*costs.sends_at_end[: len(units.unit_devices)], *costs.sends_before_end)):
        stages = runs if runs <= unit < len(units.unit_devices) else 0
        for send, last in sends:
            for reader, early_s in zip(send.readers, send.early_s, strict=True) if last else ():
                yield stages + reader, early_s
    for uploads in costs.uploads:
        for send in uploads:
            yield from zip(send.readers, send.early_s, strict=True)


def by_task(each_s: Sequence[float], more_s: Sequence[float], units: Units, microbatches: int) -> list[float]:
    """Seconds by task: from the second microbatch on, stages take more."""
    width, runs = len(units.unit_devices), len(each_s) - len(more_s)
    later_s = [*each_s[:runs], *map(sum, zip(each_s[runs:], more_s, strict=True))]
    return [*each_s[:width], *later_s[:width] * (microbatches - 1)]


def fetched_s(costs: PipelineCosts, *, in_turn: bool = False) -> list[float]:
    """By run, how long after its end the last of what others read is there."""
    of_runs = _arrivals(costs, in_turn)[: len(costs.forward_s)]
    return [max([0.0, *[there_s for _, there_s in arrivals]]) for arrivals in of_runs]


def in_code_order(costs: PipelineCosts) -> Iterator[tuple[int, int]]:
    """Units of a microbatch that follow each other on a device, whatever they read.

    A microbatch's code is walked once, so its runs are issued in the order of the code, and its backward
    after them. A device runs what it is given in that order.
    """
    units, last = costs.units, dict[int, int]()
    for run, stage in enumerate(units.stage_of_run):
        device = units.device_of[stage]
        if device in last:
            yield last[device], run
        last[device] = run
    for stage, device in enumerate(units.device_of) if units.training else ():
        yield last[device], len(units.stage_of_run) + stage


def uploaded_s(costs: PipelineCosts) -> list[float]:
    """By run, when it can begin at the earliest, by what it needs from the host."""
    found = [0.0] * len(costs.forward_s)
    for sends in costs.uploads:
        for send in sends:
            for reader, early_s in zip(send.readers, send.early_s, strict=True):
                found[reader] = max(found[reader], send.duration_s - early_s)
    return found
