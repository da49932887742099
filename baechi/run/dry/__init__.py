"""Run a plan without values: what a step would take, and how full each device would get.

In:    a module, inputs, a `Plan` and an optimizer.
Out:   a `Timeline`; the module is left as it was.
Start: `dry_run`, then `valueless` and `loop`.
"""
