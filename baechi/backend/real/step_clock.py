"""Measures one step on real devices: by events on streams; by the host's clock where there are none.

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

from baechi.backend.real.stopwatch import Stopwatch
from baechi.backend.real.streams import TorchStreams
from baechi.backend.spans import timeline_of
from baechi.records.timeline import Phase, Span, SpanKind, Timeline
from baechi.torchlib.autograd_nodes import node_of, nodes_from
from baechi.torchlib.private.autograd import (
    LEAF_NUMBER,
    current_graph_task_id,
    next_sequence_number,
    sequence_number,
)
from baechi.torchlib.tensors.pytree import tensors_in
from baechi.torchlib.tensors.storage import storage_object

_SPANS_KEPT = 100_000
_MAKER = "_baechi_maker"
"""The attribute of a storage that names the layer that made it."""

Note = Callable[[Any], None]

_Ran = tuple[SpanKind, str, str, Phase, Stopwatch, Any, Any]
"""Kind, layer, place and phase of what ran; the stopwatch of its device, and its start and end there."""


class StepClock:
    """The moments of one step: from a call of a model to the next. It waits for the devices first.

    Args:
        streams: of the cluster.
        names: the devices' names.
    """

    def __init__(self, streams: TorchStreams, names: Sequence[str]) -> None:
        self._streams = streams
        self._watches: dict[torch.device, Stopwatch] = {}
        self._bases: dict[Stopwatch, tuple[float, Any]] = {}
        for name in names:
            self._watch(name).restart_peak()
        self._begun_s = time.perf_counter()  # no device is at work any more
        for watch in self._watches.values():
            self._bases[watch] = time.perf_counter(), watch.now()
        self._ran: deque[_Ran] = deque(maxlen=_SPANS_KEPT)
        self._sent_bytes: list[int] = []
        self._in_backward: dict[str, str] = {}
        self._peaks: dict[str, int] | None = None

    @contextmanager
    def layer(self, place: str, name: str) -> Iterator[Note]:
        """Around a layer, or glue, at a place. It yields a function: call it with the layer's result."""
        watch = self._watch(place)
        first = next_sequence_number()
        start = watch.now()

        def note(result: Any) -> None:
            self._ran.append(("compute", name, place, "forward", watch, start, watch.now()))
            for tensor in tensors_in(result):
                vars(storage_object(tensor)).setdefault(_MAKER, name)
            self._watch_backward(name, place, result, first)

        yield note

    @contextmanager
    def transfer(self, tensor: torch.Tensor, ends: tuple[str, str]) -> Iterator[None]:
        """Around a copy, on the streams that send and receive it."""
        source = self._watch(ends[0])
        watch = source if source.has_streams else self._watch(ends[1])
        in_backward = current_graph_task_id() != -1
        layer = (
            self._in_backward.get(ends[0], "")
            if in_backward
            else vars(storage_object(tensor)).get(_MAKER, "")
        )
        start = watch.now()
        yield
        phase: Phase = "backward" if in_backward else "forward"
        self._ran.append(("transfer", layer, f"{ends[0]}>{ends[1]}", phase, watch, start, watch.now()))
        self._sent_bytes.append(tensor.numel() * tensor.element_size())

    def timeline(self) -> Timeline:
        """The step as a timeline; waits for the devices."""
        for watch in self._watches.values():
            watch.wait()
        ran = []
        for kind, layer, where, phase, watch, start, end in list(self._ran):
            start_s = self._seconds(watch, start)
            ran.append(Span(kind, layer, where, start_s, max(start_s, self._seconds(watch, end)), phase))
        counters = {"transfers": len(self._sent_bytes), "transfer_bytes": sum(self._sent_bytes)}
        return timeline_of(ran, self._peaks or self._peak_bytes(), counters)

    def stop(self) -> None:
        """End the step when another one begins: its peaks are those of now."""
        self._peaks = self._peak_bytes()

    def _peak_bytes(self) -> dict[str, int]:
        return {str(d): watch.peak_bytes() for d, watch in self._watches.items() if watch.has_streams}

    def _watch(self, place: str) -> Stopwatch:
        device = self._streams.device(place)
        if device not in self._watches:
            watch = self._watches[device] = Stopwatch(device, self._streams.driver)
            watch.wait()
            self._bases[watch] = time.perf_counter(), watch.now()
        return self._watches[device]

    def _seconds(self, watch: Stopwatch, moment: Any) -> float:
        host_s, base = self._bases[watch]
        return host_s - self._begun_s + watch.seconds(base, moment)

    def _watch_backward(self, name: str, place: str, result: Any, first: int) -> None:
        for node in nodes_from(
            map(node_of, tensors_in(result)), lambda node: first <= sequence_number(node) < LEAF_NUMBER
        ):
            self._watch_node(node, name, place)

    def _watch_node(self, node: Any, name: str, place: str) -> None:
        watch = self._watch(place)
        starts: list[Any] = []

        def before(grads: Any) -> None:
            starts.append(watch.now())

        def after(grads_in: Any, grads_out: Any) -> None:
            self._in_backward[place] = name
            self._ran.append(("compute", name, place, "backward", watch, starts.pop(), watch.now()))

        node.register_prehook(before)
        node.register_hook(after)
