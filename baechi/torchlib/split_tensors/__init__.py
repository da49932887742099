"""A tensor whose memory lies in pieces, perhaps on several devices; from outside it is one object.

In:    a tensor, an axis, and where each piece goes.
Out:   the same tensor object, with pieces behind it.
Start: `tensor`, then `cutting` and `operators`.
"""
