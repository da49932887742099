"""How many bytes each device holds while a phase runs.

In:    the events of `simulate.time`.
Out:   peaks by device, and the whole curve for plans that are displayed.
Start: `event_memory`; `forward` and `backward` where the host's program is known.
"""
