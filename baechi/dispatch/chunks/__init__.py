"""How an input is divided, and how the results of its chunks become one.

In:    the arguments of a call.
Out:   `AbstractCall`: the arguments of each chunk, and the call's result.
Start: `abstract`, then `rows`.
"""

from baechi.dispatch.chunks.abstract import AbstractCall, AbstractChunks, Subject
from baechi.dispatch.chunks.rows import Rows

__all__ = ["AbstractCall", "AbstractChunks", "Rows", "Subject"]
