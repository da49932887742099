"""Whether what autograd recorded of a part ends at its cuts, and which leaves it reads.

A tensor may come to a layer in a way that nothing sees, such as a global of the model's module. Then the
layer's graph runs on into another part, and gradients would be wrong, or missing. So each step looks at its
first microbatch, and at those whose code went a way that was not looked at before.
"""

from collections.abc import Callable
from typing import Any

import torch

from baechi.errors import UNSPLIT_CURE, BaechiError
from baechi.run.pipeline.graph.part import Part
from baechi.run.pipeline.graph.parts import Parts
from baechi.torchlib.private.autograd import LEAF_NUMBER, sequence_number

Meets = Callable[[torch.Tensor], None]

_MOST_WAYS = 100_000


class Seams:
    """Looks at parts, and knows at which it has looked."""

    def __init__(self) -> None:
        self._seen: set[int] = set()

    def check(self, parts: Parts, part: Part, known: set[int], meets: Meets, *, always: bool) -> None:
        """Walk through a part's graph, unless a microbatch's code that went the same way had this part."""
        waiting: list[Any] = []
        used = []
        for exit in part.exits.values():
            used.append(bool(exit.incoming))
            if exit.incoming:
                waiting.append(exit.edge.node)
        way = hash((tuple(parts.way), part.number, *used))
        if way in self._seen and not always:
            return
        seen = set(waiting)
        while waiting:
            for node, _ in waiting.pop().next_functions:
                if node is None or node in seen:
                    continue
                seen.add(node)
                number = sequence_number(node)
                if number >= LEAF_NUMBER:
                    if id(node.variable) not in known:
                        meets(node.variable)
                    continue
                found = parts.made_at(number)
                if found is not None and found is not part and not _casts_a_weight(node):
                    raise BaechiError(
                        f"{_said(part)} reads a tensor ({type(node).__name__}) that {_said(found)} made, in "
                        "a way that is not seen: not as an argument, nor in one. Pass it as an argument, let "
                        f"the two lie in one layer (no_split_module_classes), or {UNSPLIT_CURE}"
                    )
                waiting.append(node)
        if len(self._seen) >= _MOST_WAYS:
            self._seen.clear()
        self._seen.add(way)


def _said(part: Part) -> str:
    return f"part {part.number} of a microbatch, on {part.place},"


def _casts_a_weight(node: Any) -> bool:
    """Whether a node casts a weight: autocast does that once for all microbatches."""
    return all(before is None or sequence_number(before) >= LEAF_NUMBER for before, _ in node.next_functions)
