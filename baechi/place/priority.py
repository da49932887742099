"""Topological orders by priority: of the layers that could come next, the one with the least key does."""

from collections.abc import Sequence
from heapq import heapify, heappop, heappush


def order_by(followers: Sequence[Sequence[int]], keys: Sequence[float]) -> list[int]:
    """Order all layers topologically by priority."""
    missing = [0] * len(followers)
    for after in followers:
        for follower in after:
            missing[follower] += 1
    ready = [(keys[layer], layer) for layer, count in enumerate(missing) if count == 0]
    heapify(ready)
    order = []
    while ready:
        _, layer = heappop(ready)
        order.append(layer)
        for follower in followers[layer]:
            missing[follower] -= 1
            if missing[follower] == 0:
                heappush(ready, (keys[follower], follower))
    return order
