"""When what ran in one step on real devices: by events on streams, by the host's clock without.

    stream    --|start|==layer==|end|--------     an event before and after, on the stream that
    tx        --------------|start|~~copy~~|end|  computes or sends; read when everything is over
    cpu       --now s======layer======now s--     what has no stream has run when the call returns

Backward: every autograd node that a layer made has hooks around it.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from baechi.backend.autograd_nodes import nodes_from
from baechi.backend.marks import carrier
from baechi.backend.nest import tensors_in
from baechi.backend.spans import timeline_of
from baechi.backend.torch_streams import TorchStreams
from baechi.records.timeline import Phase, Span, SpanKind, Timeline

_SPANS_KEPT = 100_000
_MAKER = "_baechi_maker"
"""Which layer made a storage, hung on it."""

_LEAF = 2**63
"""Nodes that add to a leaf's gradient are numbered beyond all others."""

Note = Callable[[Any], None]


class _Moment:
    """Now, at a place: an event on what this thread computes there, or the host's clock.

    Args:
        streams: of the cluster.
        device: where.
    """

    __slots__ = ("device", "event", "host_s")

    def __init__(self, streams: TorchStreams, device: torch.device) -> None:
        self.device = device
        self.event = streams.driver.timed_event(device) if streams.driver.has_streams(device) else None
        self.host_s = time.perf_counter()


class StepClock:
    """The moments of one step: from a call of a model to the next. It waits for the devices first.

    Args:
        streams: of the cluster.
        names: the devices' names.
    """

    def __init__(self, streams: TorchStreams, names: Sequence[str]) -> None:
        self._streams, self._driver = streams, streams.driver
        self._devices = {str(d): d for d in map(streams.device, names) if self._driver.has_streams(d)}
        for device in self._devices.values():
            self._driver.synchronize(device)
            self._driver.restart_peak(device)
        self._begun_s = time.perf_counter()
        self._bases = {name: _Moment(streams, device) for name, device in self._devices.items()}
        self._ran: deque[tuple[SpanKind, str, str, _Moment, _Moment, Phase]] = deque(maxlen=_SPANS_KEPT)
        self._sent_bytes: list[int] = []
        self._in_backward: dict[str, str] = {}
        self._peaks: dict[str, int] | None = None

    @contextmanager
    def layer(self, place: str, name: str) -> Iterator[Note]:
        """Around a layer, or glue, at a place: what it yields is to be told what that returned.

        Args:
            place: where it runs.
            name: the layer, with the number of its call; empty for glue.
        """
        device = self._streams.device(place)
        first = torch._C._autograd._get_sequence_nr()
        start = _Moment(self._streams, device)

        def note(result: Any) -> None:
            self._ran.append(("compute", name, place, start, _Moment(self._streams, device), "forward"))
            for tensor in tensors_in(result):
                vars(carrier(tensor)).setdefault(_MAKER, name)
            self._watch_backward(name, place, result, first)

        yield note

    @contextmanager
    def transfer(self, tensor: torch.Tensor, ends: tuple[str, str]) -> Iterator[None]:
        """Around a copy, on the streams that send and receive it.

        Args:
            tensor: what is sent.
            ends: from where to where.
        """
        source, target = map(self._streams.device, ends)
        device = source if self._driver.has_streams(source) else target
        in_backward = torch._C._current_graph_task_id() != -1
        layer = self._in_backward.get(ends[0], "") if in_backward else vars(carrier(tensor)).get(_MAKER, "")
        start = _Moment(self._streams, device)
        yield
        where, end = f"{ends[0]}>{ends[1]}", _Moment(self._streams, device)
        self._ran.append(("transfer", layer, where, start, end, "backward" if in_backward else "forward"))
        self._sent_bytes.append(tensor.numel() * tensor.element_size())

    def timeline(self) -> Timeline:
        """The step as a timeline; waits for the devices."""
        for device in self._devices.values():
            self._driver.synchronize(device)
        ran = [
            Span(
                kind, layer, where, self._seconds(start), max(self._seconds(start), self._seconds(end)), phase
            )
            for kind, layer, where, start, end, phase in self._ran
        ]
        counters = {"transfers": len(self._sent_bytes), "transfer_bytes": sum(self._sent_bytes)}
        return timeline_of(ran, self._peaks or self._peak_bytes(), counters)

    def stop(self) -> None:
        """Another step begins: the peaks are what they are now."""
        self._peaks = self._peak_bytes()

    def _peak_bytes(self) -> dict[str, int]:
        return {name: self._driver.peak_bytes(device) for name, device in self._devices.items()}

    def _seconds(self, moment: _Moment) -> float:
        if moment.event is None:
            return max(0.0, moment.host_s - self._begun_s)
        base = self._bases[str(moment.device)]
        after_s = self._driver.elapsed_s(base.event, moment.event)
        return max(0.0, base.host_s - self._begun_s + after_s)

    def _watch_backward(self, name: str, place: str, result: Any, first: int) -> None:
        device = self._streams.device(place)
        roots = [tensor.grad_fn for tensor in tensors_in(result) if tensor.grad_fn is not None]
        for node in nodes_from(roots, lambda node: first <= node._sequence_nr() < _LEAF):
            self._watch_node(node, name, place, device)

    def _watch_node(self, node: Any, name: str, place: str, device: torch.device) -> None:
        starts: list[_Moment] = []

        def before(grads: Any) -> None:
            starts.append(_Moment(self._streams, device))

        def after(grads_in: Any, grads_out: Any) -> None:
            self._in_backward[place] = name
            self._ran.append(
                ("compute", name, place, starts.pop(), _Moment(self._streams, device), "backward")
            )

        node.register_prehook(before)
        node.register_hook(after)
