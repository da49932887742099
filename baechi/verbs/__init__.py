"""What a user calls: where the stages meet.

In:    a model, inputs, a cluster.
Out:   a distributed model, a plan, a graph, a report of what fits.
Start: `distribute`; it calls `profile` and `plans`.
"""
