"""`distribute` under torchrun: one model over several processes.

In:    what `distribute` was given, on every rank.
Out:   the model, distributed by one plan; each rank has its part.
Start: `distribution`, then `fingerprint`.
"""
