"""The orders that the literature names, for any stages. They know no times.

    gpipe         all forwards, then all backwards                     (Huang et al., NeurIPS 2019)
    1f1b          as many forwards as devices follow, then in turns    (Narayanan et al., ICML 2021, flush)
    interleaved   the same with several runs on a device, in waves     (Narayanan et al., SC 2021, 2.2)

With equal stages and no transfers, of p devices and m microbatches with forward f and backward b on each:

    gpipe, 1f1b   (m + p - 1)(f + b)           in flight m, or min(m, p - s) on device s
    interleaved   (m + (p - 1) / v)(f + b)     for v runs on a device, if p divides m
"""

from collections.abc import Iterator, Sequence
from typing import Literal, get_args

from baechi.records.pipeline import Task, Units

Textbook = Literal["gpipe", "1f1b", "interleaved"]
TEXTBOOK: tuple[Textbook, ...] = get_args(Textbook)


def textbook_lines(units: Units, devices: int, microbatches: int, name: Textbook) -> list[list[Task]]:
    """A named order, as a list for each device."""
    used = sorted(set(units.device_of), key=lambda device: _level(units, device))
    lines: list[list[Task]] = [[] for _ in range(devices)]
    for device in used:
        forwards, backwards = _waves(units, device, microbatches, len(used))
        ahead = len(forwards)
        if name != "gpipe" and backwards:
            ahead = _ahead(units, device, len(used), microbatches, name)
        lines[device] = list(_with_weights(units, _in_turns(forwards, backwards, ahead)))
    return lines


def _with_weights(units: Units, line: Sequence[Task]) -> Iterator[Task]:
    """A line with the backward of weights, where it is apart, right behind that of its stage."""
    stage_of_weights = units.weights_stage
    for task in line:
        yield task
        if task.phase == "backward" and task.unit in stage_of_weights:
            yield task._replace(unit=stage_of_weights[task.unit])


def _level(units: Units, device: int) -> tuple[int, int]:
    """How deep in forward a device's first stage is; then, where its first run stands."""
    own = [stage for stage in range(units.whole) if units.device_of[stage] == device]
    return min([units.depths[stage][0] for stage in own]), min([units.runs_of[stage][0] for stage in own])


def _ahead(units: Units, device: int, used: int, microbatches: int, name: Textbook) -> int:
    """How many forwards a device runs before its first backward."""
    runs = sum([units.device_of[stage] == device for stage in units.stage_of_run])
    level = min(used - 1, _level(units, device)[0])
    if name == "1f1b" or runs == 1:
        return min(microbatches, used - level) * runs
    return min(microbatches * runs, 2 * (used - level - 1) + (runs - 1) * used + 1)


def _waves(units: Units, device: int, microbatches: int, wave: int) -> tuple[list[Task], list[Task]]:
    """A device's forwards and backwards: as many microbatches as there are devices, unit after unit."""
    runs = [run for run, stage in enumerate(units.stage_of_run) if units.device_of[stage] == device]
    whole = units.backward_order[: units.whole]
    stages = [stage for stage in whole if units.device_of[stage] == device]
    rounds = [range(first, min(first + wave, microbatches)) for first in range(0, microbatches, wave)]
    forwards = [Task("forward", k, run) for ks in rounds for run in runs for k in ks]
    backwards = [Task("backward", k, stage) for ks in rounds for stage in stages for k in ks]
    return forwards, backwards if units.training else []


def _in_turns(forwards: Sequence[Task], backwards: Sequence[Task], ahead: int) -> list[Task]:
    """Some forwards, then backwards and forwards in turns, in the proportion of their numbers."""
    line, done = list(forwards[:ahead]), ahead
    for number, task in enumerate(backwards, start=1):
        due = min(len(forwards), ahead + number * len(forwards) // len(backwards))
        line += [task, *forwards[done:due]]
        done = due
    return line
