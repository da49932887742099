"""What torch does on the host: captures count it, and the emulated cluster charges it, by the same rules."""

from typing import Any, Literal

from torch import nn
from torch.utils.flop_counter import flop_registry

from baechi.torchlib.operators.facts import Facts
from baechi.torchlib.private.autograd import LEAF_NUMBER, current_autograd_node, sequence_number


def work_of_operator(func: Any, facts: Facts) -> Literal["view", "operator", "product", "convolution"]:
    """What an operator is to the host."""
    if not facts.kernel:
        return "view"
    if "convolution" in facts.name:
        return "convolution"
    return "product" if func.overloadpacket in flop_registry else "operator"


def work_of_call(module: nn.Module) -> Literal["module_call", "leaf_call"]:
    """What a call of a module is to the host."""
    has_code = type(module) is not nn.Sequential and next(module.children(), None) is not None
    return "module_call" if has_code else "leaf_call"


class BackwardNodes:
    """Tells the nodes of autograd's graph apart, operator by operator of a backward."""

    def __init__(self) -> None:
        self._last = -1

    def enters(self) -> bool:
        """Whether what runs now is the first operator of a node."""
        node: Any = current_autograd_node()
        number = -1 if node is None else sequence_number(node)
        before, self._last = self._last, number
        return node is not None and (number >= LEAF_NUMBER or number != before)
