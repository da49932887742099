"""Placing where memory is so short that placers find no room, and the proof where nothing fits.

In:    a `Task`.
Out:   a placement that the simulator accepts, or what is missing, in bytes.
Start: `fit`, then `least_bytes`.
"""
