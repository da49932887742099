"""A batch in parts, and results of parts as one.

In:    what the model is called with; what the microbatches returned.
Out:   the inputs of each microbatch; the loss, and outputs along the batch.
Start: `partition`, `judge`, `results`.
"""
