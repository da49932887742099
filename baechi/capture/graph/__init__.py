"""From a trace to a layer graph.

In:    a `Trace`.
Out:   a `LayerGraph`: nodes with bytes and counts, edges with bytes.
Start: `build`, then `draft`.
"""
