"""The state that a call depends on, recorded when the code reaches it, so that it can launch later.

In:    the arguments and surroundings of a call.
Out:   the caller's modes and streams, contents of containers, states of generators.
Start: `contents`, then `caller_state`.
"""
