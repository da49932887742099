"""Split layers in a step: their shards, and outputs that stay sharded until something needs the whole.

In:    a split layer's input, and its sharded weights.
Out:   its output; or a sharded one, and a loss of it, without the whole on any device.
Start: `layers`, `output`, then `operators` and `loss`.
"""
