"""What each task of a pipeline takes of memory, and gives back.

In:    a plan, and the runs and stages of its pipeline.
Out:   changes of bytes by task, for `simulate.pipeline.memory`.
Start: `bytes`, then `rehearsal`.
"""
