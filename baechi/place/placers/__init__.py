"""One placer per file: the paper's three, and baselines.

In:    a `Problem`.
Out:   for each group of layers a device, and for each device an order.
Start: `m_etf`; `rescue` is their fallback when a layer fits nowhere.
"""
