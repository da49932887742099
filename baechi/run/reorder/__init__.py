"""Launching in the plan's order: a layer that the code reaches before its turn waits.

In:    calls of layers and functional ops, as the code reaches them, and the plan's order.
Out:   launches in the plan's order, by the host or by threads; deferred tensors meanwhile.
Start: `schedule`, which is all that a step knows of this room.
"""
