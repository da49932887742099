"""Infer what a call will return and write before it runs: a run with fake tensors, cached.

In:    a layer or function with its arguments.
Out:   an `Outcome`: shapes, aliases, writes and draws.
Start: `outcome`, then `foresight`.
"""
