"""What is asked of an accelerator's driver: the one file that a test replaces by a fake.

Everything goes through torch's interface for any accelerator (`torch.accelerator`, `torch.Stream`,
`torch.Event`), or through the module of the accelerator's own type where that lacks a question: so
accelerators of other vendors are not excluded.
"""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from baechi.backend.real.spin import spin
from baechi.torchlib.private.devices import compute_on, current_index, make_current, stream_at
from baechi.torchlib.streams import has_streams

_USUAL_CACHE_BYTES = 64 * 2**20


class Driver:
    """The accelerators that torch sees in this process: streams, events, memory, names."""

    @property
    def kind(self) -> str | None:
        """The type of the accelerators, such as `"cuda"`; None if there are none."""
        found = torch.accelerator.current_accelerator(check_available=True)
        return None if found is None else found.type

    def count(self) -> int:
        """How many accelerators are visible (`CUDA_VISIBLE_DEVICES` and its like are torch's to read)."""
        return torch.accelerator.device_count() if self.kind is not None else 0

    def name(self, index: int) -> str:
        """What an accelerator's maker calls it."""
        return str(self._module().get_device_name(index))

    def free_bytes(self, index: int) -> int:
        """Free bytes of an accelerator now, over all processes."""
        return int(self._module().mem_get_info(index)[0])

    def total_bytes(self, index: int) -> int:
        """All bytes of an accelerator."""
        return int(self._module().mem_get_info(index)[1])

    def warm_up(self, index: int) -> None:
        """Let an accelerator take what it keeps: the driver's context, the workspace of matrix products."""
        with torch.no_grad():
            values = torch.ones(16, 16, device=f"{self.kind}:{index}")
            torch.mm(values, values)
        self.synchronize(values.device)

    def can_peer(self, source: int, target: int) -> bool:
        """Whether one accelerator can copy to another directly."""
        ask = getattr(self._module(), "can_device_access_peer", None)
        return ask is not None and bool(ask(source, target))

    def identity(self, index: int) -> str:
        """What tells an accelerator from its equals; its name where the driver does not say."""
        properties = self._module().get_device_properties(index)
        return str(getattr(properties, "uuid", "") or self.name(index))

    def version(self) -> str:
        """The version of torch and of what it drives the accelerators with."""
        parts = (torch.version.cuda, getattr(torch.version, "hip", None), getattr(torch.version, "xpu", None))
        return " ".join([torch.__version__, *[part for part in parts if part]])

    def cache_bytes(self, device: torch.device) -> int:
        """The size of an accelerator's last cache; a usual one where the driver does not say."""
        properties = self._module().get_device_properties(device)
        return int(getattr(properties, "L2_cache_size", 0)) or _USUAL_CACHE_BYTES

    # --- streams and events

    def has_streams(self, device: torch.device) -> bool:
        """Whether work on a device is put on streams, and the host goes on at once."""
        return has_streams(device, self.kind)

    def current_stream(self, device: torch.device) -> Any:
        """The stream on which this thread computes on a device."""
        index = device.index
        return torch.accelerator.current_stream() if index is None else stream_at(index)

    def new_stream(self, device: torch.device) -> Any:
        """A new stream."""
        return torch.Stream(device=device)

    def on(self, *streams: Any) -> AbstractContextManager[None]:
        """This thread computes on streams, one a device, and the last one's device is the current one."""
        return _On(self, streams)

    def current_device(self) -> int:
        """The index of the accelerator that this thread's kernels go to where nothing else says."""
        return current_index()

    def set_device(self, index: int) -> None:
        """Make another accelerator the current one."""
        make_current(index)

    @contextmanager
    def current(self, device: torch.device) -> Iterator[None]:
        """An accelerator is the current one."""
        before = self.current_device()
        self.set_device(device.index or 0)
        try:
            yield
        finally:
            self.set_device(before)

    def set_stream(self, stream: Any) -> None:
        """This thread computes on a stream from now on, where its device is; that is the current one, too."""
        compute_on(stream)

    def use(self, tensor: torch.Tensor, stream: Any) -> None:
        """Tell the allocator that a stream uses a tensor of its device."""
        tensor.record_stream(stream)

    def synchronize(self, device: torch.device) -> None:
        """Wait until nothing runs on a device."""
        torch.accelerator.synchronize(device)

    def timed_event(self, device: torch.device) -> Any:
        """An event on what this thread computes on a device, that knows when it happened."""
        event = torch.Event(device=device, enable_timing=True)
        event.record(self.current_stream(device))
        return event

    def elapsed_s(self, first: Any, last: Any) -> float:
        """Seconds from one timed event to another on the same device; both have happened."""
        return float(first.elapsed_time(last)) / 1e3

    # --- time

    def host_s(self) -> float:
        """The host's clock, in seconds."""
        return time.perf_counter()

    def spin(self, device: torch.device, seconds: float) -> None:
        """Keep a device busy for about some seconds, on the stream on which this thread computes there."""
        spin(self, device, seconds)

    # --- the allocator's statistics

    def live_bytes(self, device: torch.device) -> int:
        """Bytes of a device that tensors of this process take."""
        return int(torch.accelerator.memory_allocated(device))

    def peak_bytes(self, device: torch.device) -> int:
        """The most that they took since `restart_peak`."""
        return int(torch.accelerator.max_memory_allocated(device))

    def restart_peak(self, device: torch.device) -> None:
        """Forget the most that tensors took."""
        torch.accelerator.reset_peak_memory_stats(device)

    def empty_cache(self) -> None:
        """Give memory back that the allocator keeps and no tensor takes."""
        if self.kind is not None:
            torch.accelerator.empty_cache()

    def _module(self) -> Any:
        return torch.get_device_module(self.kind)


class _On:
    """While this is open, a thread computes on streams. (`with stream` cannot be nested in itself.)"""

    __slots__ = ("_before", "_device", "_driver", "_streams")

    def __init__(self, driver: Driver, streams: tuple[Any, ...]) -> None:
        self._driver, self._streams = driver, streams

    def __enter__(self) -> None:
        driver = self._driver
        self._device = driver.current_device() if self._streams else 0
        self._before = [driver.current_stream(stream.device) for stream in self._streams]
        for stream in self._streams:
            driver.set_stream(stream)

    def __exit__(self, *_: object) -> None:
        for stream in reversed(self._before):
            self._driver.set_stream(stream)
        if self._before:
            self._driver.set_device(self._device)


DRIVER = Driver()
"""This machine's."""
