"""Threads in which microbatches walk through the model's code, and what each has of its own.

In:    a model, its inputs in parts, a pipeline's runs.
Out:   what the code returns for each part; what autograd records, in parts.
Start: `lane`, `lane_step`, then `own_state`.
"""
