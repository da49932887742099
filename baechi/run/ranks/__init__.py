"""A step as programs over several processes: each runs its own of one total order.

In:    a model that is distributed over ranks, its plan, and what a call is given.
Out:   what the call returns: the loss on all ranks, other outputs where they were made.
Start: `call`, then `schedule`, `loop`.
"""
