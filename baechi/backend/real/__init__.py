"""Devices that torch itself knows: CUDA and any other accelerator.

In:    the accelerators that this process sees.
Out:   a cluster of them, their streams and events, and the times of a step.
Start: `devices`, then `streams`.
"""
