"""Weights on their devices: moved, loaded, settled again.

In:    a model, a plan or a checkpoint.
Out:   the same `Parameter` objects, each on its device.
Start: `match`, then `move`.
"""
