"""How far a step has come: which layers the host has reached, and which of them need not wait.

code     A  B  C  D  E  F        the host reaches layers in this order
plan     A  B  E  C  D  F        the device launches them in this one (design document, Fig. 2)

at C: E comes first and was not reached: C waits        at E: B was launched: E launches here,
at D: C waits: D waits                                        then C and D, which waited for it
"""

from baechi.order.launch_order import LaunchOrder


class Progress:
    """The GPU-topo criterion of the design document (section 1.3.2), while a step runs.

    A layer is *clear* when `isNotWaiting` holds for it. All layers before it on its device were reached;
    the one right before it is clear; so are its parents and the layers that must launch before it
    (`order.first`). A clear layer stays clear, so each device needs one pointer only: to the first layer
    that is not clear or was not reached.

    Args:
        order: the plan's order, and the code's.
    """

    def __init__(self, order: LaunchOrder) -> None:
        self._order = order
        self._queues = list(order.queues().values())
        self._queue_of = {layer: number for number, queue in enumerate(self._queues) for layer in queue}
        self._code_place = {layer: place for place, layer in enumerate(order.code_order)}
        self._next = [0] * len(self._queues)
        self._reached: set[str] = set()
        self._clear: set[str] = set()
        self._host_place = -1

    def is_not_waiting(self, layer: str) -> bool:
        """Whether a layer need not wait for any other.

        Args:
            layer: a layer.
        """
        return layer in self._clear

    def reach(self, layer: str) -> bool:
        """Note that the host reaches a layer.

        Args:
            layer: the layer.

        Returns:
            Whether it need not wait.
        """
        self._reached.add(layer)
        self._host_place = max(self._host_place, self._code_place[layer])
        self._advance()
        return layer in self._clear

    def _advance(self) -> None:
        """Clear every layer that can be; a newly clear layer may clear one on another device."""
        moved = True
        while moved:
            moved = any([self._advance_queue(number) for number in range(len(self._queues))])

    def _advance_queue(self, number: int) -> bool:
        queue, start = self._queues[number], self._next[number]
        while self._next[number] < len(queue):
            layer = queue[self._next[number]]
            if layer in self._reached:
                others = (*self._order.parents[layer], *self._order.first.get(layer, ()))
                if not all(other in self._clear or self._skipped(other) for other in others):
                    break
                self._clear.add(layer)
            elif not self._skipped(layer):
                break
            self._next[number] += 1
        return self._next[number] > start

    def _skipped(self, layer: str) -> bool:
        """Whether the host is past it without having reached it: a branch that was not taken."""
        return layer not in self._reached and self._code_place[layer] < self._host_place
