"""Whose turn it is on each device: the runtime's side of the GPU-topo criterion.

`waiting_layers` says beforehand which layers wait. `Turns` keeps the same order by what has really
launched. A layer may launch when all layers before it on its device have launched, or were skipped
because the code went past them. A layer on the host also waits for `order.first`. A layer that launched
out of turn, because its value was needed, counts as launched.
"""

from baechi.order.launch_order import LaunchOrder


class Turns:
    """The turns of one step.

    Args:
        order: the plan's order, and the code's.
    """

    def __init__(self, order: LaunchOrder) -> None:
        self._queues = order.numbered_queues
        self._first = order.first
        self._letting = sorted({order.places[layer][0] for layer in order.first})
        self._place = order.places
        self._code_place = order.code_places
        self._next = [0] * len(self._queues)
        self._told = [-1] * len(self._queues)  # by queue, the last position reported as up
        self._reached: set[str] = set()
        self._launched: set[str] = set()
        self._host_place = -1

    def reach(self, layer: str) -> bool:
        """Note that the host reaches a layer."""
        place = self._place.get(layer)
        if place is None:
            return True
        self._reached.add(layer)
        if self._code_place[layer] > self._host_place:
            self._host_place = self._code_place[layer]
        return self._is_up(*place)

    def is_up(self, layer: str) -> bool:
        """Whether it is a layer's turn now."""
        place = self._place.get(layer)
        return place is None or self._is_up(*place)

    def launch(self, layer: str) -> list[str]:
        """Note that a layer launches."""
        place = self._place.get(layer)
        if place is None:
            return []
        self._launched.add(layer)
        up = self._up(place[0])
        if self._letting:
            for queue in self._letting:
                if queue != place[0]:
                    up += self._up(queue)
        return up

    def has_skipped(self) -> bool:
        """Whether the host went past layers that it did not reach."""
        return len(self._reached) <= self._host_place

    def skip(self) -> list[str]:
        """The layers whose turn came because the host went past others, which were skipped."""
        if not self.has_skipped():
            return []
        return [layer for queue in range(len(self._queues)) for layer in self._up(queue)]

    def end(self) -> list[str]:
        """End the step: layers that the code did not reach count as skipped."""
        self._host_place = len(self._code_place)
        return self.skip()

    def _is_up(self, queue: int, position: int) -> bool:
        if self._next[queue] > position:
            return True  # skipped, but reached after all: no layer waits for its turn any more
        if self._pass(queue) != position or (self._first and not self._others_went(queue, position)):
            return False
        self._told[queue] = position
        return True

    def _up(self, queue: int) -> list[str]:
        """The next layer, if it was reached and its turn was not reported yet."""
        position = self._pass(queue)
        if position == self._told[queue] or position == len(self._queues[queue]):
            return []
        layer = self._queues[queue][position]
        if layer not in self._reached or (self._first and not self._others_went(queue, position)):
            return []
        self._told[queue] = position
        return [layer]

    def _others_went(self, queue: int, position: int) -> bool:
        """Whether the layers in `order.first` of this one have launched, or were skipped."""
        return all(self._is_over(other) for other in self._first.get(self._queues[queue][position], ()))

    def _is_over(self, layer: str) -> bool:
        if layer in self._launched:
            return True
        return layer not in self._reached and self._code_place[layer] < self._host_place

    def _pass(self, queue: int) -> int:
        """Move past the layers that have launched or were skipped; returns the next position."""
        layers, position = self._queues[queue], self._next[queue]
        if len(self._reached) > self._host_place:  # none is skipped; asked here for speed
            launched = self._launched
            while position < len(layers) and layers[position] in launched:
                position += 1
        else:
            while position < len(layers) and self._is_over(layers[position]):
                position += 1
        self._next[queue] = position
        return position
