"""Whether what autograd recorded of a part ends at its cuts.

A tensor may come to a layer in a way that nothing sees, such as a global of the model's module. Then the
layer's graph runs on into another part, and gradients would be wrong, or missing. So the first step looks.
"""

from collections.abc import Callable
from typing import Any

from baechi.errors import BaechiError
from baechi.run.pipeline.graph.parts import Part, Parts
from baechi.torchlib.private.autograd import LEAF_NUMBER, sequence_number

"""Torch gives the nodes of leaves the largest numbers."""


def check_seams(parts: Parts, part: Part, said: Callable[[Part], str]) -> None:
    """Walk through a part's graph.

    Args:
        parts: those of the microbatch.
        part: the part whose backward is about to run.
        said: a part in words.

    Raises:
        BaechiError: it runs on into another part.
    """
    waiting: list[Any] = [exit.edge.node for exit in part.exits.values() if exit.incoming]
    seen = set(waiting)
    while waiting:
        for node, _ in waiting.pop().next_functions:
            if node is None or node in seen:
                continue
            seen.add(node)
            number = sequence_number(node)
            if number >= LEAF_NUMBER:
                continue
            found = parts.made_at(number)
            if found is not None and found is not part and not _casts_a_weight(node):
                raise BaechiError(
                    f"{said(part)} reads a tensor ({type(node).__name__}) that {said(found)} made, in a way "
                    "that is not seen: not as an argument, nor in one. Pass it as an argument, let the two "
                    "lie in one layer (no_split_module_classes), or use microbatches=1"
                )
            waiting.append(node)


def _casts_a_weight(node: Any) -> bool:
    """Whether a node casts a weight: autocast does that once for all microbatches."""
    return all(before is None or sequence_number(before) >= LEAF_NUMBER for before, _ in node.next_functions)
