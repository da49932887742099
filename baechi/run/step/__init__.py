"""One step of the model: transfers, functional ops over several devices, writes.

In:    calls with tensors on several devices.
Out:   the same calls with all arguments on one device.
Start: `step`, then `glue`.
"""
