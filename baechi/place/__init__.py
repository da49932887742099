"""Layer graph and cluster in, plan out: pure functions of records, without torch, clock or chance.

    registry       names, and `find`
    abstract       what a placer is
    single, m_topo, m_etf, random      one placer a file
    rescue         what they do at a dead end; refusal: what they say if that fails too
    listing, clock                     list scheduling
    walk, filling, packing             placing by memory
    task, ledger                       what is to be placed; what it needs on each device
"""

from baechi.place.abstract import Placer
from baechi.place.registry import find

__all__ = ["Placer", "find"]
