"""Modules of torch: their `forward`, their arguments, and their state.

In:    a module as the user wrote it.
Out:   its `forward` replaced and put back, its arguments, its tables of objects.
Start: `intercept`, then `tables`.
"""
