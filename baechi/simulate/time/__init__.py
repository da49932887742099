"""When everything runs: what the host issues in a step, as jobs of the one clock.

In:    a plan as indexes (`simulate.indexed_plan`).
Out:   issue times, and jobs with starts and ends, of layers and transfers.
Start: `transfers`, then `program` and `issue`.
"""
