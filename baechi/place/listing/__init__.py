"""What placers share: list scheduling, walks in topological order, times while placing.

In:    a `Problem` and a ledger of memory.
Out:   layers on devices, one after the other.
Start: `start_earliest`, then `availability`.
"""
