"""Fake tensors: runs of a model in which shapes are real and values are not.

In:    operators and modules, called with fake tensors.
Out:   what they return; what torch leaves behind is cleared.
Start: `kernels`, then `leaks`.
"""
