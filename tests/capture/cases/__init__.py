"""Small models whose layer graphs are known by heart; `graph/graphs.json` has the graph of each.

Every number in `graphs.json` was worked out from the definitions: floats take 4 bytes, indices 8; a
`Linear(4, 4)` has 80 bytes of weights (64 + 16) and makes 32 for a batch of two. What is surprising
about a case stands in its docstring.
"""

from capture.cases import calls, layers, memory, ties, values, writes
from capture.cases.case import CASES, Case, Net, linear, linears, rows

FILLED_BY = (calls, layers, memory, ties, values, writes)
"""These modules add to `CASES` as they are imported."""

__all__ = ["CASES", "Case", "Net", "linear", "linears", "rows"]
