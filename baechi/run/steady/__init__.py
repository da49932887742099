"""The fast path of calls that find what the calls before them found.

In:    a layer or functional op with its arguments.
Out:   what about it is the same at each call; whether its arguments allow the fast path.
Start: `arguments`, then `layers`.

The invariant: the fast path does what the full path does. It leaves out only what cannot matter, given
what it has compared at this call. `paths.full_path_only` switches it off; tests run both side by side.
"""
