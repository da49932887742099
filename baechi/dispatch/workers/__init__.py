"""Who runs chunks: the calling thread, a thread for each target, or a process for each.

In:    jobs, each for one target.
Out:   what became of them, as they end.
Start: `abstract`, then `inline`.
"""
