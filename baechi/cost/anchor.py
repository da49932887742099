"""Where glue runs when its inputs lie on several devices: one rule, for the graph and the runtime.

An operation between layers (`x + y`, `torch.cat`) runs where the tensor lies that it writes in place.
Else it runs where its largest input lies, since the others must travel; among equals, where the newest
lies. (In `residual + hidden` both are equally large. Running where the oldest lies would tie a whole
residual stream to the device of its first layer.)
"""

from collections.abc import Sequence


def anchor(candidates: Sequence[tuple[int, int]]) -> int:
    """Choose the input that the others travel to."""
    return max(range(len(candidates)), key=lambda index: (*candidates[index], -index))
