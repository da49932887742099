"""The search of `auto`, with inner loops compiled to machine code.

In:    a `Problem` and the best placement so far.
Out:   a better placement, by estimated seconds.
Start: `estimate`, `changes`, then `rounds`.
"""

from baechi.place.search.rounds import Rounds

__all__ = ["Rounds"]
