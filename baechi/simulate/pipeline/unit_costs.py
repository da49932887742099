"""What the units of a microbatch take, send and are waited for by: runs, stages, and pieces.

    runs | stages | pieces        a unit's place; a piece runs again elsewhere within a stage's backward

Where a stage's own device waits in between, what it does before is a piece, too. That one waits for what the
stage waits for, and the stage comes after it on its device.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from baechi.simulate.pipeline.costs import PipelineCosts, Send, last_for_readers
from baechi.simulate.pipeline.ways import waiting_for_ends

Sending = tuple[Send, list[tuple[int, float]]]
"""A transfer, and the units that wait for it: their places, and what they do of their work before."""


class Seconds(NamedTuple):
    """What a unit takes.

    Args:
        host_s: of the host; a piece is issued within its stage.
        work_s: of its device.
        paced_s: from the host's begin until it is over, if the device waits for the host alone.
    """

    host_s: float
    work_s: float
    paced_s: float


class UnitCosts(NamedTuple):
    """A unit of a microbatch.

    Args:
        device: where it runs.
        seconds: in the first microbatch, and in later ones, which add gradients.
        followers: those on other devices that wait for its end, and for no transfer.
        pieces: what is issued within it.
        uploads, before_end, at_end: what it sends, or is the first to need from the host.
        fetches: whether the host waits for what it sends home.
    """

    device: int
    seconds: tuple[Seconds, Seconds]
    followers: list[int]
    pieces: list[int]
    uploads: list[Sending]
    before_end: list[Sending]
    at_end: list[Sending]
    fetches: bool


def units_at_work(costs: PipelineCosts) -> list[UnitCosts]:
    """The units, in the order of their places."""
    runs, of_units, host = len(costs.forward_s), costs.units.unit_devices, len(costs.cluster)
    first, pieces_of = dict[int, int](), defaultdict[int, list[int]](list)
    for place, piece in enumerate(costs.pieces, start=len(of_units)):
        pieces_of[runs + piece.stage].append(place)
        if piece.is_own:
            first.setdefault(runs + piece.stage, place)

    def led(sends: Iterable[tuple[Send, bool]], base: int) -> list[Sending]:
        """What goes to stages goes to what they do first."""
        return [
            (send, [(first.get(place, place), early_s) for place, early_s in readers])
            for send, readers in _sending(sends, base)
        ]

    seconds, ends = _seconds(costs), waiting_for_ends(costs)
    made: list[UnitCosts] = []
    for place, device in enumerate(of_units):
        followers = [first.get(later, later) for later in ends[place] if of_units[later] != device]
        is_run = place < runs
        made.append(
            UnitCosts(
                device,
                seconds[place],
                followers,
                pieces_of[place],
                led([(send, True) for send in costs.uploads[place]], 0) if is_run else [],
                led(costs.sends_before_end[place], 0) if is_run else [],
                led(costs.sends_at_end[place], 0 if is_run else runs),
                not is_run and any([send.target == host for send in costs.returns[place - runs]]),
            )
        )
    for place, (piece, handed) in enumerate(zip(costs.pieces, costs.handed_on, strict=True), len(of_units)):
        at_end = _sending(last_for_readers(handed), runs)
        made.append(UnitCosts(piece.device, seconds[place], [], [], [], [], at_end, False))
    return made


def _sending(sends: Iterable[tuple[Send, bool]], base: int) -> list[Sending]:
    found = []
    for send, last in sends:
        readers = zip(send.readers, send.early_s, strict=True) if last else ()
        found.append((send, [(base + reader, early_s) for reader, early_s in readers]))
    return found


def _seconds(costs: PipelineCosts) -> list[tuple[Seconds, Seconds]]:
    """By unit, what it takes in the first microbatch, and in later ones."""
    runs = len(costs.forward_s)
    found = [
        (each, each) for each in map(Seconds, costs.host_forward_s, costs.forward_s, costs.paced_forward_s)
    ]
    for stage in range(len(costs.units.unit_devices) - runs):
        host_s, work_s = costs.host_backward_s[stage], costs.backward_s[stage]
        each = Seconds(host_s, work_s, costs.paced_backward_s[stage])
        adding_s = host_s + costs.add_host_s[stage], work_s + costs.add_s[stage], costs.paced_adding_s[stage]
        found.append((each, Seconds(*adding_s)))
    for piece in costs.pieces:
        own_s, later_s = piece.own_s, piece.own_s + piece.add_s
        found.append(
            (Seconds(0.0, own_s, piece.host_s), Seconds(0.0, later_s, piece.host_s + piece.add_host_s))
        )
        if piece.is_own:
            each, adding = found[runs + piece.stage]
            rest = each._replace(work_s=each.work_s - own_s), adding._replace(work_s=adding.work_s - later_s)
            found[runs + piece.stage] = rest
    return found
