"""What the benchmarks run: models, families of them, synthetic graphs, clusters.

In:    a size.
Out:   factories of models with example inputs, and clusters to place them on.
Start: `small`.
"""
