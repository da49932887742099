"""What the runtime's own work takes of the host along a forward (`baechi.cost.own_work`).

A layer begins to wait where the code reaches it: after the launch before, and what that one sends ahead.
"""

from collections.abc import Mapping, Sequence

from baechi.simulate.indexed_plan import IndexedPlan
from baechi.simulate.time.program import Instruction
from baechi.simulate.time.transfers import Transfer


class Charges:
    """The charges of one forward; none before its first kernel or transfer, with which it begins.

    Args:
        stage: the plan, in the order of launches.
        transfers: what moves.
        waited: see `LaunchOrder`.
    """

    def __init__(self, stage: IndexedPlan, transfers: Sequence[Transfer], waited: Mapping[int, int]) -> None:
        self._own = stage.own
        self._kernels_s = stage.host_s["forward"]
        self._ahead = stage.indexed.ahead
        self._spread = len(set(stage.device_of)) > 1
        self._transfers = transfers
        self._waited = dict(waited) if self._spread else {}
        self._origin = stage.indexed.origin
        self._brought: set[str] = set()
        self._launched = 0
        self._begun = False

    def before(self, instruction: Instruction) -> float:
        """Seconds of the runtime's own work before an instruction."""
        (what, number), own = instruction, self._own
        taken_s = 0.0
        if what == "launch":
            taken_s += self._waiting_s() + (own.call_s[number] if self._spread else 0.0)
            self._launched += 1
        else:
            transfer = self._transfers[number]
            if what == "arrive" or not (transfer.producers and self._ahead[transfer.tensor]):
                taken_s += self._waiting_s()
            if what == "depart" and self._is_new(transfer):
                taken_s += own.transfer_s[transfer.tensor]
        charged_s = taken_s if self._begun else 0.0
        self._begun |= what == "depart" or (what == "launch" and self._kernels_s[number] > 0)
        return charged_s

    def _is_new(self, transfer: Transfer) -> bool:
        """Whether a tensor has its own transfer: a model on one device gets each input once."""
        origin = self._origin[transfer.tensor]
        known = origin in self._brought
        self._brought.add(origin)
        return self._spread or not known

    def _waiting_s(self) -> float:
        return self._own.waiting_s * self._waited.pop(self._launched, 0)
