"""The results of chunks into one: which rule holds for each tensor of an output, and doing it.

In:    the results of all chunks, and the items of each.
Out:   what the model would have returned for all items.
Start: `rules`, then `joiner`.
"""
