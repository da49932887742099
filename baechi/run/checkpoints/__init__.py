"""Checkpoints of a whole run, by names: any plan, any number of processes, and plain torch read them.

In:    a model, its optimizer and what else a loop has.
Out:   a folder of `torch.distributed.checkpoint`; or the state of one, put back.
Start: `by_name`, then `writer`, `reader`.
"""
