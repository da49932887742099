"""How full each device is while the phase runs.

In:    the events of `simulate.time`.
Out:   peaks by device, and the whole curve for plans that are shown.
Start: `watching`; `forward` and `backward` where the host's program is known.
"""
