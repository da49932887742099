"""Devices that torch itself knows, such as CUDA's: a place is what `str(tensor.device)` says.

A GPU can be split into several devices, `"cuda:0/0"`, `"cuda:0/1"` (and the CPU, `"cpu/0"`). Torch does
not tell these apart, so a mark on a tensor's storage names its part. A tensor without a mark was made
outside the model: it lies on the GPU, but in no part.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from baechi.backend.abstract import AbstractBackend
from baechi.backend.flag import Flag, LockFlag
from baechi.backend.real import timer
from baechi.backend.real.copies import Copies
from baechi.backend.real.driver import DRIVER, Driver
from baechi.backend.real.one_generator import OneGenerator
from baechi.backend.real.step_clock import StepClock
from baechi.backend.real.streams import TorchStreams
from baechi.backend.thread import started
from baechi.records.device import HostWork
from baechi.records.timeline import Timeline
from baechi.torchlib.private.autograd import current_graph_task_id
from baechi.torchlib.private.modes import device_of, without_torch_function
from baechi.torchlib.private.transforms import current_transform, without_transforms
from baechi.torchlib.random_state import has_generator, set_state, state_of
from baechi.torchlib.tensors.blank_memory import blank_tensors
from baechi.torchlib.tensors.spans import packed
from baechi.torchlib.tensors.storage import (
    WEIGHT,
    Mark,
    hand_on_age,
    is_plain,
    mark_of,
    memories,
    set_mark,
    unwrapped,
)


class TorchDevices(AbstractBackend):
    """The devices of a cluster whose names torch understands, or parts of such.

    Transfers between accelerators run on streams of their own, a pair for each ordered pair of
    devices; other devices, the host among them, have no streams, and their copies block.

    Args:
        names: device names, such as `"cuda:0"`, or `"cuda:0/0"` for a part of it.
        driver: answers questions about accelerators.
    """

    host = "cpu"

    def __init__(self, names: Sequence[str], driver: Driver = DRIVER) -> None:
        super().__init__()
        self.names = tuple(names)
        self._streams = TorchStreams(names, driver)
        self._driver = driver
        self._said: dict[torch.device, str] = {}
        self._clock: StepClock | None = None
        self._generator = OneGenerator(self.generators())
        self._copies = Copies(self.names, self.host, self._streams, driver)
        self._parts = {
            gpu: frozenset([name for name in names if name.startswith(f"{gpu}/")])
            for gpu in {str(self._streams.device(name)) for name in names if "/" in name}
        }

    def place_of(self, tensor: torch.Tensor) -> str:
        torch_device = device_of(tensor)
        device = self._said.get(torch_device)
        if device is None:
            device = self._said[torch_device] = str(torch_device)
        parts = self._parts.get(device) if self._parts else None
        if parts:
            mark = mark_of(tensor)
            if mark is not None and mark.place in parts:
                return mark.place
        return device

    def finder(self, place: str) -> Callable[[torch.Tensor], bool]:
        if self._parts:
            return lambda tensor: self.place_of(tensor) == place
        device = self._streams.device(place)
        return lambda tensor: device_of(tensor) == device

    def torch_device(self, place: str) -> torch.device | None:
        return self._streams.device(place)

    def named_device(self, place: str) -> torch.device:
        return self._streams.device(place)

    def kernel_device(self, place: str) -> torch.device | None:
        return self._streams.device(place)

    def generators(self) -> list[torch.device]:
        devices = dict.fromkeys([self._streams.device(name) for name in self.names])
        return [device for device in devices if device.type != self.host and has_generator(device)]

    def draw_everywhere(self) -> None:
        self._generator.spread()

    def drawing_again(self) -> AbstractContextManager[None]:
        return self._generator.again()

    def running_again(self) -> AbstractContextManager[None]:
        return nullcontext()

    def is_unplaced(self, tensor: torch.Tensor) -> bool:
        if str(device_of(tensor)) not in self._parts:
            return False
        mark = mark_of(tensor)
        return mark is not None and mark.place is None

    def claim(self, tensor: torch.Tensor, place: str) -> bool:
        if place not in self._parts.get(str(device_of(tensor)), ()):
            return False
        mark = mark_of(tensor)
        in_backward = current_graph_task_id() != -1
        if (mark is None or mark.place is not None) and not (mark is None and in_backward):
            return False
        if mark is None:  # autograd made it, and does not say for which part
            mark = Mark()
            set_mark(tensor, mark)
        made_on, used_on = self.compute_stream(str(device_of(tensor))), self.compute_stream(place)
        self.wait(used_on, self.record(made_on))
        self.use(tensor, used_on)
        mark.place = place
        return True

    def leave(self, tensor: torch.Tensor) -> None:
        gpu = str(device_of(tensor))
        if gpu in self._parts:  # autograd does not say in which part it made a gradient
            self.use(tensor, self.compute_stream(gpu))  # which waits for all of them

    def move_weights(self, tensors: Sequence[torch.Tensor], place: str) -> list[torch.Tensor]:
        device = self._streams.device(place)
        result = packed(tensors, device, stays=lambda tensor: tensor.device == device)
        for tensor, data in zip(tensors, result, strict=True):
            if tensor.layout == torch.strided:
                self._take(data, place)
        return result

    def _take(self, weight: torch.Tensor, place: str) -> None:
        """Mark where a weight lies. A part of a GPU uses it on a stream that did not allocate it."""
        set_mark(weight, Mark(place, WEIGHT))
        own = self._streams.own(place)
        if own is not None:
            self._driver.use(weight, own)

    def room_for(self, tensors: Sequence[torch.Tensor], place: str) -> list[torch.Tensor]:
        made = blank_tensors(tensors, self._streams.device(place))
        for tensor in made:
            self._take(tensor, place)
        return made

    @property
    def session(self) -> object:
        return None

    def count(self, tensors: Iterable[torch.Tensor]) -> None:
        del tensors  # the driver knows

    def compute_stream(self, place: str) -> Any:
        return self._streams.compute(place)

    def transfer_streams(self, source: str, target: str) -> tuple[Any, Any]:
        return self._streams.transfer(source, target)

    def record(self, stream: Any) -> Any:
        return None if stream is None else stream.record_event()

    def wait(self, stream: Any, event: Any) -> None:
        if event is None:
            return
        if stream is None:  # the host has none: it waits itself
            event.synchronize()
        else:
            stream.wait_event(event)

    def reads_later(self, tensor: torch.Tensor) -> bool:
        with without_torch_function():
            return tensor.device.type == self.host and tensor.is_pinned()

    def use(self, tensor: torch.Tensor, stream: Any) -> None:
        if stream is None:
            return
        if is_plain(tensor) and current_transform() is None:
            self._driver.use(tensor, stream)
            return
        with without_transforms():  # no transform has a rule for record_stream, and none needs one
            for memory in memories(unwrapped(tensor)):  # a nested tensor has no `record_stream`
                self._driver.use(memory, stream)

    def copy(
        self, tensor: torch.Tensor, place: str, streams: tuple[Any, Any], *, gradient: bool = False
    ) -> torch.Tensor:
        source, clock = self.place_of(tensor), self._clock
        copied = self._copies.copy(tensor, (source, place), streams, clock)
        if not gradient:
            hand_on_age(tensor, copied, place)
        elif str(copied.device) in self._parts:
            set_mark(copied, Mark(place))
        return copied

    def copy_s(self, tensor: torch.Tensor, place: str) -> float:
        return self._copies.seconds(tensor, (self.place_of(tensor), place))

    def spend(self, what: HostWork, place: str, times: int = 1) -> None:
        """Their clocks are real."""

    def wait_on_host(self, event: Any, place: str) -> None:
        if event is not None:
            event.synchronize()

    def seeded(self, seed: int) -> Any:
        host = torch.Generator().manual_seed(seed).get_state()
        devices = self.generators()
        states = [torch.Generator(device).manual_seed(seed).get_state() for device in devices]
        return host, dict(zip(devices, states, strict=True)), self._generator.first

    def random_state(self) -> Any:
        states = {device: state_of(device) for device in self.generators()}
        return torch.get_rng_state(), states, self._generator.holder

    def set_random_state(self, state: Any) -> None:
        host, states, holder = state
        torch.set_rng_state(host)
        for device, one in states.items():
            set_state(device, one)
        self._generator.held_by(holder)

    def node_log(self) -> Any:
        return None

    def nodes_of(self, log: Any) -> AbstractContextManager[None]:
        return nullcontext()

    def idle_s(self) -> float:
        return self._copies.idle_s()

    def flag(self) -> Flag:
        return LockFlag()

    def spawn(self, function: Callable[[], None], position: int) -> Callable[[], None]:
        del position
        follow = self._streams.following()

        def run() -> None:
            follow()
            function()

        return started(run)

    def now_s(self) -> float:
        return self._driver.host_s()

    def give_way(self) -> None:
        """Their threads run as they can."""

    @contextmanager
    def step(self) -> Iterator[Callable[[], Timeline] | None]:
        if self._clock is not None:
            self._clock.stop()
        self._clock = StepClock(self._streams, self.names) if timer.is_on() else None
        with self._streams.stepping(), self._generator.stepping():
            yield None if self._clock is None else self._clock.timeline

    def at(
        self, place: str, layer: str | None = None
    ) -> AbstractContextManager[Callable[[Any], None] | None]:
        if layer is not None:
            self._generator.bring(self._streams.device(place))
        if layer is None or self._clock is None:
            return self._streams.at(place)
        return self._timed_at(self._clock, place, layer)

    @contextmanager
    def _timed_at(self, clock: StepClock, place: str, layer: str) -> Iterator[Callable[[Any], None]]:
        with self._streams.at(place), clock.layer(place, layer) as note:
            yield note

    def is_bare(self, *places: str) -> bool:
        if self._clock is not None:
            return False
        devices = [self._streams.device(place) for place in places]
        return not any(self._generator.knows(one) or self._streams.has_streams(one) for one in devices)

    def enter_layer(self, layer: str) -> str:
        return ""
