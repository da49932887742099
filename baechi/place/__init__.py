"""Layer graph and cluster -> plan: pure functions of records, without torch, clock or chance.

In:    a `LayerGraph` and a `Cluster`.
Out:   a `Plan`: for each layer a device, and for each device an order.
Start: `problem`, `ledger`, `placers/m_topo`, then `placers/m_etf`; `auto` tries all and
       searches.
"""

from baechi.place.abstract import Placer
from baechi.place.auto import best
from baechi.place.registry import find
from baechi.place.tight.fit import fit

__all__ = ["Placer", "best", "find", "fit"]
