"""How full devices get in a step in microbatches.

In:    a pipeline, and its list as the host goes through it.
Out:   peaks by device, and the curve of bytes.
Start: `filling`; `rehearsal` for what each task takes and gives back.
"""
