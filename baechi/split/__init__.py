"""Layers in shards: what a layer larger than a device is rewritten into, before it is placed.

In:    a layer graph, and which layers are split, along which dimension, into which sizes.
Out:   a layer graph whose split layers are shards and a join, nodes like any others.
Start: `dimension`, `table`, then `spec`, `rewrite`; `layer_shard` is what runs.
"""
