"""Orders of a pipeline that are known by name.

In:    the stages and runs of a `Pipeline`, a number of microbatches.
Out:   for each device, its tasks in order.
Start: `textbook`.
"""

from baechi.order.pipeline.textbook import TEXTBOOK, Textbook, textbook_lines

__all__ = ["TEXTBOOK", "Textbook", "textbook_lines"]
