"""Random programs over the streams of emulated devices, and two naive judges of them.

A `Player` runs instructions. Before each access it waits for what must be over, and before it frees
it says who used what, so every program is well synchronized, unless it is told to leave something
out. What it does it also writes down, for the judges: `races` keeps for each stream the set of all
that is over before its next operation; `schedule` serves whatever is ready first, again and again.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from backend.virtual.machine.by_hand import DEVICES, compute, emulator, host_s, on, side, zeros
from hypothesis import strategies as st

from baechi.backend.virtual.machine.streams import Stream
from baechi.cost.clock import Job

LAUNCH_S = 2.0**-10
KINDS = ("make", "empty", "read", "read", "write", "combine", "send", "send", "free", "value")

Instruction = tuple[str, int, int, int]
Entry = tuple[Any, ...]

_numbers = st.integers(0, 11)
_instructions = st.tuples(st.sampled_from(KINDS), _numbers, _numbers, _numbers)
programs = st.lists(_instructions, min_size=4, max_size=30).map(lambda rest: [("make", 0, 0, 2), *rest])


@dataclass(eq=False)
class Moment:
    """An event, its number in the log, and the operations after which it happens."""

    event: Any
    number: int
    ops: frozenset[int]


@dataclass(eq=False)
class Held:
    """A tensor of the program, and who touched it."""

    number: int
    tensor: torch.Tensor
    device: int
    home: Stream
    written: Moment
    reads: list[Moment] = field(default_factory=list)
    touched: dict[Stream, None] = field(default_factory=dict)


@dataclass(eq=False)
class Op:
    """What ran: when it was issued, after what, where it had to queue, how long it took."""

    issued_s: float
    needs: frozenset[int]
    queue: tuple[str, int]
    seconds: float
    task: Job


class Player:
    """Runs a program on the emulated cluster that is at work.

    Args:
        devices: how many it has.
        keeps: asked at each wait, and at each word to the allocator, whether it is done.
    """

    def __init__(self, devices: int, keeps: Callable[[], bool] = lambda: True) -> None:
        self.names = [f"cpu:{k}" for k in range(devices)]
        self.streams = [[compute(name), side(name, "a"), side(name, "b")] for name in self.names]
        self.held: list[Held] = []
        self.ops: list[Op] = []
        self.log: list[Entry] = []
        self._keeps = keeps
        self._before: dict[Stream, set[int]] = defaultdict(set)
        self._numbers = 0

    def play(self, program: list[Instruction]) -> None:
        """Run instructions; each has three numbers and makes of them what there is."""
        for kind, *numbers in program:
            getattr(self, kind)(*numbers)

    def finish(self) -> None:
        """The host waits for all streams, so that everything is timed."""
        for own, *others in self.streams:
            for other in others:
                DEVICES.wait(own, DEVICES.record(other))
        emulator().synchronize()

    # --- instructions

    def make(self, device: int, stream: int, size: int) -> Held:
        """A new tensor that is written at once."""
        device, floats = device % len(self.names), 1 + size % 4
        return self._run(stream, device, floats, lambda: zeros(self.names[device], floats))

    def empty(self, device: int, stream: int, size: int) -> Held:
        """A new tensor that is not written yet."""
        device %= len(self.names)
        chosen = self.streams[device][stream % 3]
        with on(chosen):
            tensor = torch.empty(1 + size % 4, device=self.names[device])
        return self._hold(tensor, device, chosen)

    def read(self, which: int, stream: int, _: int = 0) -> None:
        """A new tensor is made of one."""
        held = self._choose(which)
        if held is not None:
            seconds = 2 * len(held.tensor)
            self._run(stream, held.device, seconds, lambda: held.tensor + 1, reads=[held])

    def write(self, which: int, stream: int, _: int = 0) -> None:
        """One is written in place."""
        held = self._choose(which)
        if held is not None:
            seconds = 2 * len(held.tensor)
            self._run(stream, held.device, seconds, lambda: held.tensor.add_(1), writes=[held])

    def combine(self, which: int, stream: int, other: int) -> None:
        """One is written in place, and another is read."""
        held = self._choose(which)
        here = [one for one in self.held if held and one.device == held.device and one is not held]
        if held is not None and here:
            read, seconds = here[other % len(here)], 2 * len(held.tensor) + 1

            def add() -> torch.Tensor:
                return held.tensor.add_(read.tensor[:1])

            self._run(stream, held.device, seconds, add, reads=[read], writes=[held])

    def send(self, which: int, target: int, _: int = 0) -> Held | None:
        """One travels to another device."""
        held = self._choose(which)
        if held is None or len(self.names) == 1:
            return None
        target = (held.device + 1 + target % (len(self.names) - 1)) % len(self.names)
        tx, rx = DEVICES.transfer_streams(self.names[held.device], self.names[target])
        self._wait(tx, held.written)
        self.log.append(("run", tx, rx, [held.number], [self._numbers]))
        issued_s = host_s() + LAUNCH_S
        copied = DEVICES.copy(held.tensor, self.names[target], (tx, rx))
        self._note((tx, rx), issued_s, ("port", target), len(held.tensor))
        held.reads.append(self._moment(tx))
        held.touched[tx] = None
        return self._hold(copied, target, rx)

    def value(self, which: int, stream: int, _: int = 0) -> None:
        """The host waits for a number of one."""
        held = self._choose(which)
        if held is not None:
            self._run(stream, held.device, 1, lambda: held.tensor[0].item(), reads=[held])
            self.log.append(("host", self.streams[held.device][stream % 3]))

    def free(self, which: int, waits: int, _: int = 0) -> None:
        """One is not needed any more: who used it is said, or waited for."""
        held = self._choose(which)
        if held is None:
            return
        self.held.remove(held)
        said = []
        for stream in held.touched:
            if not waits % 2 and self._keeps():
                DEVICES.use(held.tensor, stream)
                said.append(stream)
        if waits % 2:
            for moment in (held.written, *held.reads):
                self._wait(held.home, moment)
        self.log.append(("free", held.number, said))

    # --- what they are made of

    def _choose(self, which: int) -> Held | None:
        return self.held[which % len(self.held)] if self.held else None

    def _run(
        self,
        stream: int,
        device: int,
        seconds: float,
        kernel: Callable[[], Any],
        reads: list[Held] | None = None,
        writes: list[Held] | None = None,
    ) -> Any:
        """Run a kernel on a stream of a device; what it returns is a new tensor if it writes no other."""
        chosen, reads, writes = self.streams[device][stream % 3], reads or [], writes or []
        for held in (*reads, *writes):
            self._wait(chosen, held.written)
        for held in writes:
            for moment in held.reads:
                self._wait(chosen, moment)
        numbers = [held.number for held in writes]
        self.log.append(("run", chosen, chosen, [held.number for held in reads], numbers))
        issued_s = host_s() + LAUNCH_S
        with on(chosen):
            made = kernel()
        self._note((chosen,), issued_s, ("engine", device), seconds)
        for held in (*reads, *writes):
            held.touched[chosen] = None
        for held in writes:
            held.written, held.reads = self._moment(chosen), []
        for held in reads:
            held.reads.append(self._moment(chosen))
        return self._hold(made, device, chosen) if isinstance(made, torch.Tensor) and not writes else None

    def _hold(self, tensor: torch.Tensor, device: int, home: Stream) -> Held:
        self.log.append(("home", self._numbers, home))
        held = Held(self._numbers, tensor, device, home, self._moment(home))
        self._numbers += 1
        self.held.append(held)
        return held

    def _wait(self, stream: Stream, moment: Moment) -> None:
        if self._keeps():
            DEVICES.wait(stream, moment.event)
            self.log.append(("wait", stream, moment.number))
            self._before[stream] |= moment.ops

    def _moment(self, stream: Stream) -> Moment:
        moment = Moment(DEVICES.record(stream), len(self.log), frozenset(self._before[stream]))
        self.log.append(("record", stream, moment.number))
        return moment

    def _note(
        self, streams: tuple[Stream, ...], issued_s: float, queue: tuple[str, int], seconds: float
    ) -> None:
        needs = frozenset().union(*[self._before[stream] for stream in streams])
        assert streams[0].last is not None
        for stream in streams:
            self._before[stream] = {len(self.ops)}
        self.ops.append(Op(issued_s, needs, queue, seconds, streams[0].last))


def races(log: list[Entry], *, lenient: bool) -> bool:
    """Whether a program has a race, by the sets of what is over.

    Args:
        log: what it did.
        lenient: take it that a transfer is over on both ends once it is on one, and that a stream
            of which a use was said vouches for the streams that it waited for.
    """
    known: dict[Stream, set[int]] = defaultdict(set)
    own: dict[Stream, set[int]] = defaultdict(set)
    host: set[int] = set()
    events: dict[int, set[int]] = {}
    home: dict[int, Stream] = {}
    written: dict[int, set[int]] = defaultdict(set)
    read: dict[int, set[int]] = defaultdict(set)
    stream_of: dict[int, Stream] = {}
    found = False
    for place, entry in enumerate(log):
        match entry:
            case ("wait", stream, number):
                known[stream] |= events[number]
            case ("record", stream, number):
                events[number] = known[stream] | host
            case ("host", stream):
                host |= known[stream]
            case ("home", number, stream):
                home[number] = stream
                written[number] |= own[stream]
            case ("free", number, said):
                over = known[home[number]] | host
                if lenient:
                    over = over.union(*[known[stream] for stream in said])
                left = (written[number] | read[number]) - over
                found |= any(stream_of[op] not in said for op in left)
            case ("run", reader, writer, reads, writes):
                ids = (2 * place, 2 * place + 1)
                known[reader] |= known[writer] | host
                known[writer] |= known[reader]
                found |= any(written[number] - known[reader] for number in (*reads, *writes))
                found |= any(read[number] - known[writer] for number in writes)
                for stream, op in zip((reader, writer), ids, strict=True):
                    stream_of[op] = stream
                    own[stream].add(op)
                    known[writer].add(op)
                    known[stream].add(op)
                if lenient:
                    known[reader].add(ids[1])
                for number in reads:
                    read[number].add(ids[0])
                for number in writes:
                    written[number].add(ids[1])
    return found


def schedule(ops: list[Op]) -> list[tuple[float, float]]:
    """When each operation starts and ends: who is ready first is served first, then who was issued first."""
    spans: dict[int, tuple[float, float]] = {}
    free_s: dict[tuple[str, int], float] = defaultdict(float)
    while len(spans) < len(ops):
        ready = [
            (max([op.issued_s, *[spans[need][1] for need in op.needs]]), number)
            for number, op in enumerate(ops)
            if number not in spans and op.needs <= spans.keys()
        ]
        ready_s, number = min(ready)
        start_s = max(ready_s, free_s[ops[number].queue])
        spans[number] = start_s, start_s + ops[number].seconds
        free_s[ops[number].queue] = spans[number][1]
    return [spans[number] for number in range(len(ops))]
