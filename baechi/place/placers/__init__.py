"""One placer a file, from the paper's three to baselines.

In:    a `Task`.
Out:   for each group of layers a device, and for each device an order.
Start: `m_etf`; `rescue` is what they do at a dead end.
"""
