"""Placing when memory is so short that placers find no plan, and the proof if no plan exists.

In:    a `Problem`.
Out:   a placement that the simulator accepts, or what is missing, in bytes.
Start: `fit`, then `least_bytes`.
"""
