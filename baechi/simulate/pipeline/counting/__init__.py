"""What each task of a pipeline takes of devices and host, and of memory.

In:    a plan, and the runs and stages of its pipeline.
Out:   seconds by task; changes of bytes by task, for `simulate.pipeline.memory`.
Start: `seconds`; `bytes`, then `rehearsal`.
"""
