"""What baechi costs, and how good it is, as ratios in one run: `PYTHONPATH=tests python -m benches`.

In:    the name of a bench.
Out:   a table, and JSON.
Start: `registry`, then `figures`.
"""
