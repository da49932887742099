"""A tensor whose memory is sharded, perhaps on several devices; from outside it is one object.

In:    a tensor, an axis, and where each shard goes.
Out:   the same tensor object, with shards behind it.
Start: `tensor`, then `cut` and `operators`.
"""
