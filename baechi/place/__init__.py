"""Layer graph and cluster in, plan out: pure functions of records, without torch, clock or chance.

    registry           the placers by name, and `find`
    abstract           what a placer is
    single, m_topo, m_etf, random      one placer a file; auto: the best of them
    round_robin, even                  what they are compared with
    rescue             what they do at a dead end
    tight              what is done when that fails too: program, repair; least_bytes, bundles, solver
    proof, refusal     what is said when nothing fits
    listing, clock     list scheduling, and its times
    walk, filling, packing             placing by memory alone
    task, group_bytes  what is to be placed
    ledger, books, training_ledger, inference_ledger, level     what it needs on each device

Read `task`, `ledger` and `walk` first, then `m_topo`, then `listing` and `m_etf`.
"""

from baechi.place.abstract import Placer
from baechi.place.auto import best
from baechi.place.registry import find
from baechi.place.tight import fit

__all__ = ["Placer", "best", "find", "fit"]
