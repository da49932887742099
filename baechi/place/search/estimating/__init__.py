"""The step of a placement in a small fraction of the time of a simulation.

In:    a `Problem` as `Tables`, the devices of the layers, their priorities.
Out:   seconds, an order of the layers, and the critical chain.
Start: `estimate`, then `dispatch`, `in_turn` and `replay`.
"""
