"""Steps in microbatches, as users ask `distribute` for them.

In:    a model, a whole batch, into how many parts, what the loss is.
Out:   the model, distributed.
Start: `request`, then `microbatches`.
"""
