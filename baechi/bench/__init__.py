"""`baechi bench`: what things cost, as ratios in one run.

In:    the name of a benchmark.
Out:   a table, and JSON.
Start: `registry`, then `figures`.
"""
