"""One model over many inputs: chunks of an input, a scheduler that gives them to devices, workers that run
them.

In:    a model (or what makes one), a scheduler, and inputs too many for one call or one device.
Out:   `Dispatched`, called as the model is called; its results are in the order of the inputs.
Start: `loop`, then `schedulers/abstract` and `dispatched_model`.
"""
