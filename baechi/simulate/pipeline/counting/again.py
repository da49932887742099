"""Regions that the model's code checkpoints, where they lie in several stages: the backward of each stage
runs all of such a region again, on all its devices.

    stage of b, on device 1    |backward of c..|                    |b again|backward of b|
    device 0                                   |a again|─▶ sent ─▶

What runs on the stage's own device is a part of its backward. What runs elsewhere is a piece: the host issues
it within the backward, and its device does it in turn, as all else that is issued there.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from baechi.cost.indexed_graph import FROM_HOST
from baechi.records.pipeline import Units
from baechi.simulate.indexed_plan import IndexedPlan
from baechi.simulate.pipeline.counting.seconds import SecondsCounter
from baechi.simulate.pipeline.counting.torn import Torn


class Piece(NamedTuple):
    """A stretch of a region that runs again on another device than that of the stage.

    Or what the stage's own device does until it waits for such a stretch, or sends to one: a part
    of the backward.

    Args:
        stage: the stage whose backward it belongs to.
        device: where it runs.
        own_s: what it takes of the device.
        issued_s: what the host has done of the backward when it begins to issue the piece.
        host_s: what it takes of the host.
        is_own: whether it is what the stage's own device does before it waits.
        add_s, add_host_s: what additions of gradients take beside that, from the second microbatch on.
    """

    stage: int
    device: int
    own_s: float
    issued_s: float
    host_s: float
    is_own: bool = False
    add_s: float = 0.0
    add_host_s: float = 0.0


class Handed(NamedTuple):
    """A tensor that goes from a piece to another one, or to its stage, at its end.

    Args:
        source, target: devices.
        size_bytes: what travels.
        reader: the stage; or a piece, counted from the number of stages on.
    """

    source: int
    target: int
    size_bytes: int
    reader: int


@dataclass(frozen=True)
class Again:
    """What runs again.

    Args:
        pieces: in the order in which a stage's backward has them.
        handed: by piece, what it hands on.
    """

    pieces: list[Piece] = field(default_factory=list)
    handed: list[list[Handed]] = field(default_factory=list)


class _Begun(NamedTuple):
    """What a stage had taken of its device and of the host when its last piece ended, and which that was."""

    done_s: float
    host_s: float
    add_s: float
    add_host_s: float
    piece: int


class RunningAgain:
    """Counts what runs again, while backward is counted.

    Args:
        torn: the regions.
        plan: the placement, indexed.
        units: its stages.
        counter: what is counted.
        travel_s: of a source, a target and bytes: seconds of a transfer.
        send_s: what the host takes for a transfer.

    Attributes:
        again: what runs on other devices than its stage's.
    """

    def __init__(
        self,
        torn: Torn,
        plan: IndexedPlan,
        units: Units,
        counter: SecondsCounter,
        travel_s: Callable[[int, int, int], float],
        send_s: float,
    ) -> None:
        self.again = Again()
        self._torn, self._plan, self._counter = torn, plan, counter
        self._device_of, self._travel_s, self._send_s = units.device_of, travel_s, send_s
        self._seen: set[tuple[int, int]] = set()
        self._maker: dict[int, int] = {}
        self._begun: dict[int, _Begun] = {}

    def reach(self, layer: int, stage: int) -> None:
        """Run a region again, if the stage has not, and the layer needs what it keeps."""
        region = self._torn.region_of.get(layer)
        if region is None or (stage, region) in self._seen or not self._plan.works_back[layer]:
            return
        self._seen.add((stage, region))
        self._maker = {}
        for device, layers in self._torn.stretches(region):
            self._stretch(stage, device, layers)

    def without(self, layer: int, host_s: float, own_s: float) -> tuple[float, float]:
        """See `Torn`."""
        return self._torn.without(layer, host_s, own_s)

    def _spend(self, stage: int, host_s: float) -> float:
        """Let the stage's thread work: it issues all of a region. Returns what it had done before."""
        before_s = self._counter.seconds.host_backward_s[stage]
        self._counter.work(stage, host_s, 0.0)
        return before_s

    def _stretch(self, stage: int, device: int, layers: list[tuple[int, float]]) -> None:
        """Run a stretch of a region, after what it reads was sent."""
        forward_s, host_s = self._plan.seconds_of("forward"), self._plan.host_s["forward"]
        taken = [(part * host_s[layer], part * forward_s[layer]) for layer, part in layers]
        brought = [self._sent(stage, one) for one in self._torn.brought(device, layers)]
        number, is_own = stage, device == self._device_of[stage]
        if not is_own:
            number = self._piece(
                stage, device, sum([own for _, own in taken]), sum([host for host, _ in taken])
            )
        self._hand_on(stage, number, device, [one for one in brought if one is not None])
        for issue_s, own_s in taken if is_own else ():
            self._counter.work(stage, issue_s, own_s)
        self._maker.update(dict.fromkeys([layer for layer, _ in layers], number))

    def _sent(self, stage: int, tensor: int) -> tuple[int, int, int] | None:
        """Who makes a tensor, where, and how large it is; None of what the host has."""
        maker, size_bytes = self._plan.indexed.source[tensor], self._plan.indexed.size_bytes[tensor]
        if maker == FROM_HOST:
            self._spend(stage, self._send_s)
            return None
        source = self._plan.device_of[maker]
        if source == self._device_of[stage]:
            number: int | None = self._split(stage)
        else:
            number = self._maker.get(maker)
        if number is None:  # what the region is given: it is sent behind all that was issued there
            number = self._piece(stage, source, 0.0, 0.0)
        self._spend(stage, self._send_s)
        return number, source, size_bytes

    def _piece(self, stage: int, device: int, own_s: float, host_s: float) -> int:
        return self._added(Piece(stage, device, own_s, self._spend(stage, host_s), host_s))

    def _added(self, piece: Piece) -> int:
        self.again.pieces.append(piece)
        self.again.handed.append([])
        return len(self._device_of) + len(self.again.pieces) - 1

    def _hand_on(self, stage: int, reader: int, device: int, brought: list[tuple[int, int, int]]) -> None:
        """Note what a stage or a piece reads of pieces."""
        if reader == stage and brought:
            self._split(stage)
        for maker, source, size_bytes in brought:
            handed = Handed(source, device, size_bytes, reader)
            self.again.handed[maker - len(self._device_of)].append(handed)

    def _split(self, stage: int) -> int:
        """Make a piece of what a stage has done since the last one, if it has; returns its number."""
        seconds, begun = self._counter.seconds, self._begun.get(stage, _Begun(0.0, 0.0, 0.0, 0.0, -1))
        now = _Begun(
            seconds.backward_s[stage],
            seconds.host_backward_s[stage],
            seconds.add_s[stage],
            seconds.add_host_s[stage],
            len(self._device_of) + len(self.again.pieces),
        )
        if begun.piece >= 0 and now.done_s == begun.done_s:
            return begun.piece
        self._begun[stage] = now
        for handed in self.again.handed:
            handed[:] = [one._replace(reader=now.piece) if one.reader == stage else one for one in handed]
        done_s, host_s, *added_s = [after - before for after, before in zip(now[:4], begun[:4], strict=True)]
        return self._added(Piece(stage, self._device_of[stage], done_s, begun.host_s, host_s, True, *added_s))
