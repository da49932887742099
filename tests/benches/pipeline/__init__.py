"""The bench of pipelines: steps in microbatches beside one device and the orders of the literature.

In:    models on the `meta` device, clusters by their datasheets, numbers of microbatches.
Out:   a row for each: gain over one device, the chosen order over the bound and over other orders.
Start: `measuring`, then `emulated`.
"""

from benches.pipeline.measuring import measure

__all__ = ["measure"]
