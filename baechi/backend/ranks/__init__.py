"""The devices of several processes, one each: rank k has `"rank<k>/cpu"` or `"rank<k>/cuda:<n>"`.

In:    processes that torchrun started.
Out:   their devices as a backend, of which one is here, and the wires between them.
Start: `wires`, then `devices`.
"""
