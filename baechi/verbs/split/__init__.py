"""Layers that are split: `baechi.split`, and what `distribute(split=)` asks for.

In:    a layer graph, and how layers are split, as users say it.
Out:   a layer graph with shards.
Start: `verb`, then `request`.
"""
