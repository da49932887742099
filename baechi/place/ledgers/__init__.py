"""Memory while placing: how full each device is, and whether one more layer fits.

In:    a `Task`, then one placed layer after the other.
Out:   bytes by device, and room for the next layer.
Start: `abstract`, then `of_task`.
"""
