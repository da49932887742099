"""Outputs of split layers that are not joined: what runs on them part by part, and when they are joined.

In:    the outputs of tiles, one after the other along an axis.
Out:   one value; a loss of it, without the whole on any device.
Start: `value`, then `functions` and `loss`.
"""
