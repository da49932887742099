"""Streams of real devices, and of the parts of one: which a place computes on, sends and receives on.

cuda:0              the stream that the caller computes on; while a layer runs, cuda:0 is the current
                    device, so that kernels which do not say where go there
cuda:0/0, cuda:0/1  a stream of its own each; where a step begins these wait for the caller's
                    stream, and where it ends the caller's waits for them
cpu                 none: what is launched there has run when the host goes on
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from baechi.backend.real.driver import Driver
from baechi.torchlib.private.autograd import current_graph_task_id

_NOTHING = nullcontext()
_UNKNOWN: Any = object()


class _Current:
    """While this is open, a device is the current one, and its stream, where that is another one."""

    __slots__ = ("_before", "_device", "_driver", "_stream")

    def __init__(self, driver: Driver, device: torch.device, stream: Any) -> None:
        self._driver, self._device, self._stream = driver, device, stream

    def __enter__(self) -> None:
        self._before = self._driver.current_device()
        if self._before == self._device.index:
            return
        now = self._driver.current_stream(self._device)
        if now == self._stream:
            self._stream = None
            self._driver.set_device(self._device.index or 0)
        else:
            self._driver.set_stream(self._stream)
            self._stream = now

    def __exit__(self, *exception: object) -> None:
        if self._before != self._device.index:
            if self._stream is not None:
                self._driver.set_stream(self._stream)
            self._driver.set_device(self._before)


def device_behind(name: str) -> torch.device:
    """The torch device that a name stands for: `"cuda:0/1"` is a part of `"cuda:0"`."""
    return torch.device(name.partition("/")[0])


def is_here(name: str) -> bool:
    """Whether torch can put tensors on a device."""
    try:
        torch.empty(0, device=device_behind(name))
    except (RuntimeError, AssertionError):  # no such name, torch was built without it, or it is not there
        return False
    return True


class TorchStreams:
    """The streams of a cluster's devices.

    Args:
        names: the devices' names.
        driver: makes streams.
    """

    def __init__(self, names: Sequence[str], driver: Driver) -> None:
        self.driver = driver
        self._devices = {name: device_behind(name) for name in names}
        self._has_streams: dict[torch.device, bool] = {}
        self._with_streams: dict[str, Any] = {}  # by place, its device; None if that has no streams
        self._callers: dict[torch.device, Any] = {}
        self._own: dict[str, Any] = {}
        self._streams_of_gpu: dict[str, list[Any]] = {}
        self._transfer: dict[tuple[str, str], tuple[Any, Any]] = {}
        for name, device in self._devices.items():
            if "/" in name and self.has_streams(device):
                self._own[name] = driver.new_stream(device)
                self._streams_of_gpu.setdefault(str(device), []).append(self._own[name])

    def compute(self, place: str) -> Any:
        """The stream on which this thread computes at a place; None if it has none.

        A tensor on a split GPU without a known part may have been made on any of its streams. So the
        caller's stream waits for all of them.
        """
        own = self._own.get(place)
        if own is not None:
            return own
        device = self._with_streams.get(place, _UNKNOWN)
        if device is _UNKNOWN:
            there = self.device(place)
            device = self._with_streams[place] = there if self.has_streams(there) else None
        if device is None:
            return None
        current = self.driver.current_stream(device)
        if current_graph_task_id() != -1 and device.index != self.driver.current_device():
            current = self._callers.get(device, current)  # autograd sets the stream of its own device only
        for stream in self._streams_of_gpu.get(place, ()):
            if stream != current:
                current.wait_event(stream.record_event())
        return current

    def transfer(self, source: str, target: str) -> tuple[Any, Any]:
        """The streams on which an ordered pair of places sends and receives; one stream within a GPU."""
        known = self._transfer.get((source, target))
        if known is None:
            ends = [self.device(end) for end in (source, target)]
            tx, rx = [self.driver.new_stream(d) if self.has_streams(d) else None for d in ends]
            known = self._transfer[source, target] = (tx, tx) if ends[0] == ends[1] else (tx, rx)
        return known

    def at(self, place: str) -> AbstractContextManager[None]:
        """What this thread launches inside runs at a place."""
        if place in self._own:
            return self._on(self._own[place])
        if place in self._streams_of_gpu:
            return self._between_all(place)
        device = self.device(place)
        return _Current(self.driver, device, self.compute(place)) if self.has_streams(device) else _NOTHING

    def own(self, place: str) -> Any:
        """The stream of a part of a GPU; None if the place is no such part."""
        return self._own.get(place)

    def has_streams(self, device: torch.device) -> bool:
        """Whether work on a device is put on streams; the driver is asked once."""
        if device not in self._has_streams:
            self._has_streams[device] = self.driver.has_streams(device)
        return self._has_streams[device]

    def callers(self) -> dict[torch.device, Any]:
        """The streams on which this thread computes, by device."""
        devices = dict.fromkeys(self._devices.values())
        return {device: self.driver.current_stream(device) for device in devices if self.has_streams(device)}

    def following(self) -> Callable[[], None]:
        """What another thread is to call to compute where this one does: on its streams and device."""
        callers = self.callers()
        if not callers:
            return lambda: None
        index = self.driver.current_device()

        def follow() -> None:
            for stream in callers.values():
                self.driver.set_stream(stream)
            self.driver.set_device(index)

        return follow

    @contextmanager
    def _on(self, own: Any) -> Iterator[None]:
        before = self.driver.current_stream(own.device)
        # code on one part calls a layer on another part, and the runtime does not see what that layer
        # reads (a fused stack): the streams of both parts keep the order of the code
        nested = before != own and before in self._streams_of_gpu[str(own.device)]
        if nested:
            own.wait_event(before.record_event())
        with self.driver.on(own):
            yield
        if nested:
            before.wait_event(own.record_event())

    @contextmanager
    def _between_all(self, gpu: str) -> Iterator[None]:
        """On the caller's stream: after earlier work of all parts of a GPU, and before later work."""
        stream = self.compute(gpu)
        yield
        for part in self._streams_of_gpu[gpu]:
            part.wait_event(stream.record_event())

    @contextmanager
    def stepping(self) -> Iterator[None]:
        """While a model runs: its streams wait for the caller's stream first, and the caller's stream
        waits for them at the end."""
        self._callers = self.callers()
        for gpu, streams in self._streams_of_gpu.items():
            begun = self.driver.current_stream(self.device(gpu)).record_event()
            for stream in streams:
                stream.wait_event(begun)
        try:
            yield
        finally:
            for gpu in self._streams_of_gpu:
                self.compute(gpu)

    def device(self, place: str) -> torch.device:
        """The torch device of a place."""
        found = self._devices.get(place)
        if found is None:
            found = self._devices[place] = device_behind(place)
        return found
