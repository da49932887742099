"""What the units of a microbatch take and wait for: runs, stages, and what runs again elsewhere in backward.

    runs | stages | pieces        a piece has a stage's place among readers: its number, behind the stages

Where a stage's own device waits in between, what it does before is a piece, too. That one waits for what the
stage waits for, and the stage comes after it on its device.
"""

from collections.abc import Sequence
from itertools import chain

from baechi.simulate.pipeline.costs import PipelineCosts, Send, last_for_readers
from baechi.simulate.pipeline.counting.again import Piece
from baechi.simulate.pipeline.ways import arrivals_of, by_task, waiting_for_ends


class UnitCosts:
    """The units of a microbatch.

    Args:
        costs: of the pipeline.
        microbatches: how many.
        pieces: those of `costs`, or none.

    Attributes:
        device_of: by unit, its device.
        duration_s, paced_s: by task; see `AbstractPlay`.
        followers: by unit, those that wait for its end.
        arrivals: what units wait for, with what they take of their device before they read it.
        before_end, at_end: by unit, what it sends; see `PipelineCosts`.
    """

    def __init__(self, costs: PipelineCosts, microbatches: int, pieces: Sequence[Piece]) -> None:
        units = costs.units
        self._microbatches, self._pieces, self._runs = microbatches, pieces, len(units.stage_of_run)
        self._width = len(units.unit_devices)
        self.device_of = (*units.unit_devices, *[piece.device for piece in pieces])
        self._first: dict[int, int] = {}
        for number, piece in enumerate(pieces, start=self._width):
            if piece.is_own:
                self._first.setdefault(self._runs + piece.stage, number)
        self.duration_s, self.paced_s = self._seconds(costs)
        self.followers = [
            [self._first.get(unit, unit) for unit in later] for later in waiting_for_ends(costs)
        ] + [[] for _ in pieces]
        self.arrivals = [(self._first.get(unit, unit), early_s) for unit, early_s in arrivals_of(costs)]
        self.before_end = costs.sends_before_end + [[] for _ in range(len(self.device_of) - self._runs)]
        of_runs, of_stages = costs.sends_at_end[: self._runs], costs.sends_at_end[self._runs : self._width]
        handed_on = [last_for_readers(sends) for sends in costs.handed_on[: len(pieces)]]
        self.at_end = [*of_runs, *[self._led(sends) for sends in of_stages], *handed_on]
        for send, last in chain(*handed_on):
            self.arrivals += [(self._runs + reader, 0.0) for reader in send.readers if last]

    def by_task(self, each: Sequence[float], first: Sequence[float], later: Sequence[float]) -> list[float]:
        """Figures by task, with those of pieces behind those of each microbatch.

        Args:
            each: without pieces.
            first, later: by piece, in the first microbatch and in later ones.
        """
        width = self._width
        if not self._pieces:
            return [*each]
        of_first, others = [*each[:width], *first], range(width, len(each), width)
        return [*of_first, *chain(*[(*each[at : at + width], *later) for at in others])]

    def _seconds(self, costs: PipelineCosts) -> tuple[list[float], list[float]]:
        pieces = self._pieces
        each_s = by_task([*costs.forward_s, *costs.backward_s], costs.add_s, costs.units, self._microbatches)
        first_s, later_s = [
            [*costs.paced_forward_s, *backward][: self._width]
            for backward in (costs.paced_backward_s, costs.paced_adding_s)
        ]
        own_s = [piece.own_s for piece in pieces], [piece.own_s + piece.add_s for piece in pieces]
        host_s = [piece.host_s for piece in pieces], [piece.host_s + piece.add_host_s for piece in pieces]
        duration_s = self.by_task(each_s, *own_s)
        for number, piece in enumerate(pieces, start=self._width):
            of_stage = range(self._runs + piece.stage, len(duration_s), len(self.device_of))
            for task in of_stage if piece.is_own else ():
                duration_s[task] -= duration_s[task - self._runs - piece.stage + number]
        return duration_s, self.by_task([*first_s, *later_s * (self._microbatches - 1)], *host_s)

    def _led(self, sends: list[tuple[Send, bool]]) -> list[tuple[Send, bool]]:
        """What goes to stages goes to what they do first."""
        if not self._first:
            return sends
        runs, first = self._runs, self._first
        return [
            (
                send._replace(
                    readers=tuple([first.get(runs + one, runs + one) - runs for one in send.readers])
                ),
                last,
            )
            for send, last in sends
        ]
