"""What is peculiar about operators and torch functions: one table, which every room asks.

In:    an operator as the dispatcher calls it, or a function as a model's code calls it.
Out:   what it writes, views, computes, draws, costs; whether it may wait, move, be given copies.
Start: `table` (a new operator is a new row there), then `facts` (operators), `functions` (functions).
"""
