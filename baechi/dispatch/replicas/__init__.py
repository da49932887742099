"""Replicas: the model on each target, with the weights that the user's model has now.

In:    the user's model (the master), and a target.
Out:   `AbstractReplica`: launches a chunk there, and brings its results to where the input lies.
Start: `replica`, then `weights`.
"""
