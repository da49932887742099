"""A model runs once under watch, and what happened is written down.

In:    a module and example inputs.
Out:   a `Trace`: calls, operations, storages, in the order in which they came.
Start: `trace` (the record), then `run`.
"""
