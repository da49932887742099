"""ETF as its definition reads: all ready layers times all devices, again for every decision.

No memory, no groups, no heaps. Slow, and short enough to be seen to be right.
"""

from collections.abc import Iterator
from math import ceil

import networkx as nx

from baechi.records import Cluster, LayerGraph


class NaiveETF:
    """One run; `order` lists `(layer, device)` as they were decided."""

    def __init__(self, graph: LayerGraph, cluster: Cluster) -> None:
        self.graph, self.cluster = graph, cluster
        code = {name: place for place, name in enumerate(graph)}
        rank = nx.lexicographical_topological_sort(graph.subgraph(graph.placed()), key=code.get)
        self.rank = {name: place for place, name in enumerate(rank)}
        self.sizes: dict[tuple[str, object], int] = {}
        for source, _, data in graph.edges(data=True):
            key = source, data.get("tensor")
            if not data.get("order_only"):
                self.sizes[key] = max(self.sizes.get(key, 0), ceil(data.get("bytes", 0)))
        self.end = {name: 0.0 for name in graph if name not in self.rank}
        self.home = dict.fromkeys(self.end, "host")
        self.arrived: dict[tuple[object, str], float] = {}
        self.device_free = dict.fromkeys(cluster.names, 0.0)
        self.channel_free: dict[object, float] = {}
        self.order: list[tuple[str, str]] = []
        while len(self.order) < len(self.rank):
            *_, layer, device = min(self.choices(), key=lambda choice: choice[:4])
            self.start(layer, device, commit=True)

    def choices(self) -> Iterator[tuple[float, int, float, int, str, str]]:
        for layer in self.rank:
            if layer not in self.end and all(p in self.end for p in self.graph.predecessors(layer)):
                for place, device in enumerate(self.cluster.names):
                    start = self.start(layer, device)
                    yield start, self.rank[layer], start + self.work(layer, device), place, layer, device

    def start(self, layer: str, device: str, *, commit: bool = False) -> float:
        start = self.device_free[device]
        channels = dict(self.channel_free)
        absent = []
        for source, _, data in self.graph.in_edges(layer, data=True):
            key = source, data.get("tensor")
            if data.get("order_only") or self.home[source] == device:
                start = max(start, self.end[source])
            elif (key, device) in self.arrived:
                start = max(start, self.arrived[key, device])
            else:
                absent.append((self.end[source], key))
        keys = list(self.sizes)
        for ready, key in sorted(absent, key=lambda item: (item[0], self.number(item[1], keys))):
            home = self.home[key[0]]
            channel = device if self.cluster.reception == "serial" else (home, device)
            channels[channel] = max(ready, channels.get(channel, 0.0)) + self.travel(
                home, device, self.sizes[key]
            )
            start = max(start, channels[channel])
            if commit:
                self.arrived[key, device] = channels[channel]
        if commit:
            self.channel_free = channels
            self.end[layer] = self.device_free[device] = start + self.work(layer, device)
            self.home[layer] = device
            self.order.append((layer, device))
        return start

    def number(self, key: tuple[str, object], keys: list[tuple[str, object]]) -> tuple[int, int]:
        return list(self.graph).index(key[0]), keys.index(key)

    def work(self, layer: str, device: str) -> float:
        phases = ("forward_s", "backward_s") if self.graph.training else ("forward_s",)
        speed = self.cluster.device(device).speed
        return sum(self.graph.nodes[layer].get(phase, 0) / speed for phase in phases)

    def travel(self, source: str, target: str, size: int) -> float:
        there, back = self.cluster.link_between(source, target), self.cluster.link_between(target, source)
        seconds = there.latency_s + size / there.bytes_per_s
        if self.graph.training and source != "host":
            seconds += back.latency_s + size / back.bytes_per_s
        return seconds
