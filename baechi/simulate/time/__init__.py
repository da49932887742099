"""When everything runs: the event loop of one phase.

In:    a plan as indexes (`simulate.indexed_plan`).
Out:   starts and ends of layers and transfers.
Start: `transfers`, then `engine`.
"""
