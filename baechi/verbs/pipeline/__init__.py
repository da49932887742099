"""Steps in microbatches, as users ask for them: a plan's order, and a model that runs it.

In:    graphs of one microbatch, or a model and its batch.
Out:   a `Pipeline`; or the model, distributed.
Start: `pipelining`, then `microbatching`.
"""
