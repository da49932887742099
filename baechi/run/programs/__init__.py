"""A model's step as programs: its code is captured once, and cut by the plan.

In:    a distributed model, its plan, and what a call is given.
Out:   what the call returns, without running the model's code.
Start: `call`, then `capture`, `joint`, `segments`, `loop`.
"""
