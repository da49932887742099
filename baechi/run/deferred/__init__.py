"""Values that are not computed yet, and the tasks that will compute them.

In:    a call that cannot launch yet: its turn has not come, or inputs are missing.
Out:   deferred tensors that turn into real ones when the task launches.
Start: `task`, then `tensor`.
"""
