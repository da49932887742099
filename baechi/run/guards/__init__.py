"""Guards for the ways in which a call could bypass the runtime: each is handled or refused.

In:    hooks, checkpointing, entry points of torch that no mode sees.
Out:   the same calls with real tensors, on the right device; or an error with the cure.
Start: `entrances`.
"""
