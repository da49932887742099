"""What a call depends on beside its arguments.

In:    the calling thread.
Out:   its settings, to restore them; whether its code must run as it is written.
Start: `caller_state`.
"""
