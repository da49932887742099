"""What autograd records of microbatches: in parts, with cuts between them, and gradients that wait.

In:    tensors that cross from stage to stage.
Out:   backwards of parts; gradients that `backward()` hands over.
Start: `parts`, `nodes`, then `handing_over`.
"""
