"""Values that are not computed yet, and the tasks that will compute them.

In:    a call whose turn has not come.
Out:   deferred tensors that turn into real ones when the task launches.
Start: `task`, then `tensor`.
"""
