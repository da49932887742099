"""A step in microbatches: lanes walk through the model's code, and a list of tasks says who goes on.

In:    a distributed model, a `Pipeline`, a batch.
Out:   the loss, or the joined outputs; gradients are handed over by `backward()`.
Start: `call`, `executor`, then the rooms `lanes`, `graph` and `batch`.
"""
