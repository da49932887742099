"""What things cost, in seconds and bytes: one model, for placers, simulator and emulated devices.

In:    a graph, a device, a link.
Out:   seconds of layers and transfers, bytes of layers, where a functional op runs.
Start: `memory`, `transfer`, then `machine`.
"""
