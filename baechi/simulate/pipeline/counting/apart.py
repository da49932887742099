"""The memory of a stage whose weights' gradients are made later, by a task of their own.

Between the two tasks autograd's graph is kept from the last product with weights on (what comes behind that
in the code, such as a loss, is released), and the gradients that came to these products.
"""

from collections.abc import Iterable
from math import ceil

from baechi.records.layer_costs import LayerCosts
from baechi.simulate.memory.backward import BackwardLedger
from baechi.simulate.memory.gradients import Gradient
from baechi.simulate.pipeline.counting.notes import NEW, NOW, Notes

_OF_ONE_PRODUCT = 2
"""A weight and a bias."""


def new_gradient_bytes(costs: LayerCosts) -> int:
    """Gradients of weights that a layer's backward makes first."""
    coming = costs.backward_grad_bytes
    return ceil(costs.grad_bytes if coming is None else coming)


class Apart:
    """Notes what the second task takes, and what waits for it.

    Args:
        notes: where to note.
        ledger: counts the first task.
        device: the stage's device.
        stage: the stage of the weights.
    """

    def __init__(self, notes: Notes, ledger: BackwardLedger, device: int, stage: int) -> None:
        self._notes, self._ledger, self._device = notes, ledger, device
        self._first, self._second = notes.task, ("backward", stage)
        self._caught: list[Gradient | None] = []

    def catch(self, costs: LayerCosts, makes: Iterable[int]) -> None:
        """Keep what the gradients of a layer's weights need; called before the layer's backward.

        Of a layer with several products inside, what comes to the inner ones is not known. It is taken to be
        half of what autograd keeps, of which the rest is what they read.
        """
        notes, device = self._notes, self._device
        self._caught += [self._ledger.hold(tensor, device) for tensor in makes]
        largest = ceil(costs.grad_bytes if costs.largest_grad_bytes is None else costs.largest_grad_bytes)
        inside = ceil(costs.saved_bytes / 2) if (costs.grads or 0) > _OF_ONE_PRODUCT else 0
        notes.note(device, inside, NOW)
        notes.task = notes.releasing = self._second
        notes.note(device, new_gradient_bytes(costs), NEW)
        notes.issue(device, largest, 0.0)  # beside those that it is added to
        notes.free(device, largest + inside)
        notes.task = self._first

    def finish(self) -> None:
        """The second task is over: nothing of the stage is kept."""
        self._notes.task = self._second
        for gradient in self._caught:
            if gradient is not None:
                self._ledger.let_go(gradient, self._device)
        self._notes.task = self._first
