"""What a task must come after, in the list that the host obeys, and why.

    data         what it reads, forward or as a gradient
    code         a microbatch's code is walked once, in its order; backward begins when it is over
    microbatch   each unit takes the microbatches in their order: sums of gradients, running statistics

Orders that devices are given come on top (`merged`). The list is one for all: an order that obeys it has no
circle, and a circle among these has no list.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from baechi.records.pipeline.units import Task, Units

_MOST_FAULTS = 20
_FAR = 1000


def comes_after(units: Units, task: Task) -> Iterator[tuple[Task, str]]:
    """The tasks that come before a task, each with the reason."""
    phase, k, unit = task
    if k:
        yield Task(phase, k - 1, unit), "microbatches keep their order"
    if phase == "forward":
        for run in units.forward_after[unit]:
            yield Task("forward", k, run), "it reads what that makes"
        if unit:
            yield Task("forward", k, unit - 1), "the code comes there first"
        return
    for stage in units.backward_after[unit]:
        yield Task("backward", k, stage), "it needs the gradient from there"
    for run in units.runs_of[unit]:
        yield Task("forward", k, run), "that is its forward"
    yield Task("forward", k, len(units.stage_of_run) - 1), "backward begins when the code is over"


def described(units: Units, names: Sequence[str], task: Task) -> str:
    """A task in words."""
    of, unit, where = "", task.unit, names[units.device(task)]
    if task.phase == "backward" and unit >= units.whole:
        of, unit = " of weights", units.weights_of[unit - units.whole]
    what = "run" if task.phase == "forward" else "stage"
    return f"{task.phase}{of} of microbatch {task.microbatch}, {what} {unit} on {where}"


def order_faults(
    units: Units, names: Sequence[str], microbatches: int, order: Sequence[Task]
) -> tuple[str, ...]:
    """What keeps an order from running: every task once, each after all that it comes after."""
    faults = once_faults(units, names, microbatches, order)
    place = {task: position for position, task in enumerate(order)} if not faults else {}
    for task, position in place.items():
        for earlier, why in comes_after(units, task):
            if place[earlier] > position:
                faults.append(
                    f"position {position} is the {described(units, names, task)}, before position "
                    f"{place[earlier]}, the {described(units, names, earlier)}: {why}"
                )
    more = len(faults) - _MOST_FAULTS
    return tuple(faults if more <= 0 else [*faults[:_MOST_FAULTS], f"and {more} more"])


def once_faults(units: Units, names: Sequence[str], microbatches: int, tasks: Iterable[Task]) -> list[str]:
    """Which tasks are missing, twice or unknown."""
    tasks = list(tasks)
    needed = microbatches * len(units.unit_devices)
    if needed > _FAR * (len(tasks) + 1):  # so many sentences would be no help, nor have room
        return [f"it has {len(tasks):,} tasks, and {microbatches:,} microbatches are {needed:,}"]
    wanted = dict.fromkeys(units.tasks(microbatches if needed else 0))
    place: dict[Task, int] = {}
    faults = []
    for position, task in enumerate(tasks):
        if task not in wanted:
            faults.append(f"position {position} is {tuple(task)}: there is no such task")
        elif task in place:
            faults.append(f"positions {place[task]} and {position} are both {described(units, names, task)}")
        else:
            place[task] = position
    return faults + [f"it misses the {described(units, names, task)}" for task in wanted if task not in place]


def limit_faults(
    units: Units, names: Sequence[str], order: Sequence[Task], limits: Mapping[str, int]
) -> list[str]:
    """Where an order has more microbatches in flight on a device than its limit."""
    most = in_flight(units, len(names), order)
    return [
        f"{most[number]} microbatches are in flight on {name}, and its limit is {limits[name]}"
        for number, name in enumerate(names)
        if name in limits and most[number] > limits[name]
    ]


def in_flight(units: Units, devices: int, order: Sequence[Task]) -> list[int]:
    """The most microbatches that are in flight on each device: begun there, and not over."""
    left: dict[tuple[int, int], int] = {}
    for task in order:
        key = units.device(task), task.microbatch
        left[key] = left.get(key, 0) + 1
    begun: set[tuple[int, int]] = set()
    live, most = [0] * devices, [0] * devices
    for task in order:
        key = units.device(task), task.microbatch
        device = key[0]
        live[device] += key not in begun
        begun.add(key)
        most[device] = max(most[device], live[device])
        left[key] -= 1
        live[device] -= left[key] == 0
    return most
