"""The emulated cluster, inside: clocks, streams and allocators, as plain Python objects.

In:    work in seconds and bytes, in the order in which the host issues it.
Out:   when it runs, on which stream, in which block of memory; races and full devices as errors.
Start: `emulator`, then `clock`.
"""
