"""Random losses and outputs in microbatches, judged by the gradients of the whole batch on the plain model.

In:    a seed.
Out:   equal, refused by an error of ours, said, or wrong in silence.
Start: `draw`, then `judge`.
"""
