"""Memory while placing: the bytes on each device, and whether one more layer fits.

In:    a `Task`, then one placed layer after the other.
Out:   bytes by device, and free bytes for the next layer.
Start: `abstract`, then `of_task`.
"""
