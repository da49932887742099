"""Random programs: those that wait for all they must never raise, and run as a naive scheduler says."""

from collections import Counter
from collections.abc import Callable
from itertools import count

import pytest
from backend.virtual.machine.by_hand import cluster_of, emulator
from backend.virtual.machine.programs import LAUNCH_S, Instruction, Player, programs, races, schedule
from hypothesis import given, settings
from hypothesis import strategies as st

from baechi.errors import StreamRaceError

some_devices = st.integers(1, 3)


def played(devices: int, program: list[Instruction], reception: str = "serial") -> Player:
    """A well-synchronized program, run to its end."""
    with cluster_of(devices, launch_s=LAUNCH_S, reception=reception):
        player = Player(devices)
        player.play(program)
        player.finish()
    return player


@settings(max_examples=60, deadline=None, derandomize=True)
@given(some_devices, programs)
def test_well_synchronized_programs_never_raise(devices: int, program: list[Instruction]) -> None:
    """Whoever waits for what he reads and writes, and says what he frees, is never stopped."""
    player = played(devices, program)
    assert not races(player.log, lenient=False)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(some_devices, programs)
def test_memory_is_what_is_held(devices: int, program: list[Instruction]) -> None:
    """Once all is over each device holds the tensors that are held there, and no more."""
    with cluster_of(devices, launch_s=LAUNCH_S):
        player = Player(devices)
        player.play(program)
        player.finish()
        held = Counter({name: 0 for name in player.names})
        for one in player.held:
            held[player.names[one.device]] += one.tensor.untyped_storage().nbytes()
        allocator = emulator().allocator
        assert allocator.live_bytes == dict(held)
        assert all(allocator.peak_bytes[name] >= size for name, size in held.items())


@settings(max_examples=60, deadline=None, derandomize=True)
@given(some_devices, programs)
def test_clocks_are_those_of_a_naive_scheduler(devices: int, program: list[Instruction]) -> None:
    """Each operation starts after its issue, its stream and its events, when its engine or port is free."""
    player = played(devices, program)
    found = [(op.task.start_s, op.task.end_s) for op in player.ops]
    assert found == schedule(player.ops)
    for op, (start_s, end_s) in zip(player.ops, found, strict=True):
        assert start_s >= max([op.issued_s, *[found[need][1] for need in op.needs]])
        assert end_s == start_s + op.seconds


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.integers(2, 3), programs, st.sampled_from(["serial", "free"]))
def test_the_same_program_has_the_same_clocks(
    devices: int, program: list[Instruction], reception: str
) -> None:
    """A second run has the same clocks, to the last bit."""
    one, other = (played(devices, program, reception) for _ in range(2))
    assert [op.task.start_s for op in one.ops] == [op.task.start_s for op in other.ops]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(some_devices, programs, st.sets(st.integers(0, 40), min_size=1, max_size=4))
def test_a_race_is_what_the_sets_of_what_is_over_say(
    devices: int, program: list[Instruction], dropped: set[int]
) -> None:
    """With waits and holds left out a program raises if, and only if, something is out of order."""
    numbers, raised = count(), False
    player = None
    try:
        with cluster_of(devices, launch_s=LAUNCH_S):
            player = Player(devices, keeps=lambda: next(numbers) not in dropped)
            player.play(program)
            player.finish()
    except StreamRaceError:
        raised = True
    assert player is not None
    if raised:
        assert races(player.log, lenient=False)
    else:
        assert not races(player.log, lenient=True)


class Switch:
    """Says no from when it is turned off."""

    def __init__(self) -> None:
        self.on = True

    def __call__(self) -> bool:
        return self.on


def reads_elsewhere(player: Player, switch: Switch) -> None:
    player.make(0, 0, 3)
    switch.on = False
    player.read(-1, 1)


def writes_elsewhere(player: Player, switch: Switch) -> None:
    player.make(0, 0, 3)
    player.read(-1, 1)
    switch.on = False
    player.write(-2, 2)


def sends_before_the_producer(player: Player, switch: Switch) -> None:
    player.make(0, 1, 3)
    switch.on = False
    player.send(-1, 0)


def reads_before_it_arrived(player: Player, switch: Switch) -> None:
    player.make(0, 2, 3)
    player.send(-1, 0)
    switch.on = False
    player.read(-1, 0)


def writes_while_it_leaves(player: Player, switch: Switch) -> None:
    player.make(0, 0, 3)
    player.send(-1, 1)
    switch.on = False
    player.write(-2, 0)


def frees_while_it_leaves(player: Player, switch: Switch) -> None:
    player.make(0, 0, 3)
    player.send(-1, 1)
    switch.on = False
    player.free(-2, 0)


def frees_what_another_stream_reads(player: Player, switch: Switch) -> None:
    player.make(1, 2, 3)
    player.read(-1, 0)
    switch.on = False
    player.free(-2, 1)


ENDS: list[Callable[[Player, Switch], None]] = [
    reads_elsewhere,
    writes_elsewhere,
    sends_before_the_producer,
    reads_before_it_arrived,
    writes_while_it_leaves,
    frees_while_it_leaves,
    frees_what_another_stream_reads,
]


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
@settings(max_examples=15, deadline=None, derandomize=True)
@given(program=programs)
def test_one_wait_less_is_one_too_few(
    end: Callable[[Player, Switch], None], program: list[Instruction]
) -> None:
    """After any well-synchronized program, one that lacks a wait or a word it needs is stopped."""
    switch = Switch()
    with pytest.raises(StreamRaceError), cluster_of(2, launch_s=LAUNCH_S):
        player = Player(2, keeps=switch)
        player.play(program)
        end(player, switch)
    assert not switch.on
