"""Emulated devices as the runtime sees them: ordinary CPU tensors that carry a mark of where they lie.

Inside `with cluster:` everything goes to the emulator; outside, tensors have places, copies copy, and
that is all: the numbers are right, and nothing is timed, counted or checked.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from baechi.backend.abstract import AbstractBackend
from baechi.backend.flag import Flag, LockFlag
from baechi.backend.thread import started
from baechi.backend.virtual import current
from baechi.backend.virtual.inside import InFunctionalOp, InLayer, InRank, emulated_step
from baechi.backend.virtual.machine.emulator import Emulator
from baechi.backend.virtual.machine.issuers import Thread
from baechi.backend.virtual.machine.streams import Event, Host, Stream
from baechi.backend.virtual.machine.sums import Sum
from baechi.backend.virtual.machine.threads import VirtualFlag
from baechi.backend.virtual.torch_names import torch_devices
from baechi.records.cluster import HOST
from baechi.records.device import HostWork
from baechi.records.rank_names import are_of_ranks
from baechi.records.timeline import Timeline
from baechi.torchlib.private.modes import without_dispatch_modes
from baechi.torchlib.tensors.blank_memory import blank_tensors
from baechi.torchlib.tensors.layout import copy_from_row, copy_with_layout, sent_and_held_bytes
from baechi.torchlib.tensors.spans import packed
from baechi.torchlib.tensors.storage import (
    WEIGHT,
    Mark,
    hand_on_age,
    mark_of,
    marked_with,
    remove_mark,
    set_mark,
)

_CPU = torch.device("cpu")
_NOTHING = nullcontext()


class VirtualDevices(AbstractBackend):
    """The devices of an emulated cluster; a tensor without a mark lies on the host.

    Args:
        names: device names, such as `"cpu:0"`.
    """

    host = HOST

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        self.names = tuple(names)
        self.sends_rows = are_of_ranks(names)

    def place_of(self, tensor: torch.Tensor) -> str:
        mark = mark_of(tensor)
        return HOST if mark is None or mark.place is None else mark.place

    def finder(self, place: str) -> Callable[[torch.Tensor], bool]:
        return marked_with(place)

    def torch_device(self, place: str) -> torch.device | None:
        emulator = self._emulator(place)
        return None if emulator is None else torch_devices(emulator.cluster.names)[place]

    def named_device(self, place: str) -> torch.device:
        return torch_devices(self.names)[place]

    def kernel_device(self, place: str) -> torch.device | None:
        return None

    def generators(self) -> list[torch.device]:
        return []

    def draw_everywhere(self) -> None:
        """They have one generator: the host's."""

    def drawing_again(self) -> AbstractContextManager[None]:
        return nullcontext()

    def running_again(self) -> AbstractContextManager[None]:
        emulator = current.at_work()
        return nullcontext() if emulator is None else emulator.thread.running_again()

    def is_unplaced(self, tensor: torch.Tensor) -> bool:
        mark = mark_of(tensor)
        return mark is not None and mark.place is None

    def known_to_all(self, scalar: torch.Tensor) -> torch.Tensor | None:
        if not self.sends_rows:
            return None
        with without_dispatch_modes():  # each rank computes it
            return scalar.detach().clone()

    def claim(self, tensor: torch.Tensor, place: str) -> bool:
        mark = mark_of(tensor)
        if mark is None or mark.place is not None:
            return False
        emulator = self._emulator(place)
        if emulator is not None:
            device = emulator.index[place]
            emulator.take_in([tensor], device, "a tensor")
        mark.place = place
        return True

    def move_weights(self, tensors: Sequence[torch.Tensor], place: str) -> list[torch.Tensor]:
        if place == HOST:
            for tensor in tensors:
                remove_mark(tensor)
            return [tensor.data for tensor in tensors]
        emulator = self._emulator(place)
        with without_dispatch_modes():  # a move is no operation of the model
            result = packed(tensors, _CPU, stays=lambda tensor: self.place_of(tensor) == place)
        for data in result:
            if (
                self.place_of(data) == place
            ):  # as before, or it shares memory with one that was moved just now
                continue
            mark = Mark(place, WEIGHT)
            if emulator is not None:
                emulator.allocator.block(data, mark)
            set_mark(data, mark)
        return result

    def room_for(self, tensors: Sequence[torch.Tensor], place: str) -> list[torch.Tensor]:
        with without_dispatch_modes():  # an allocation is no operation of the model
            made = blank_tensors(tensors, _CPU)
        return self.move_weights(made, place)

    @property
    def session(self) -> Emulator | None:
        return current.at_work()

    def count(self, tensors: Iterable[torch.Tensor]) -> None:
        for tensor in tensors:
            mark = mark_of(tensor)
            emulator = self._emulator(mark.place) if mark is not None and mark.place is not None else None
            if emulator is not None and mark is not None:
                emulator.allocator.block(tensor, mark)

    def compute_stream(self, place: str) -> Stream | None:
        emulator = self._emulator(place)
        return None if emulator is None else emulator.stream(emulator.index[place])

    def transfer_streams(self, source: str, target: str) -> tuple[Stream | None, Stream | None]:
        emulator = current.at_work()
        if emulator is None:
            return None, None
        pair = tuple(emulator.index.get(end, emulator.index_of_host) for end in (source, target))
        tx, rx = emulator.transfer_streams(pair[0], pair[1])
        return (tx if source in emulator.index else None), (rx if target in emulator.index else None)

    def record(self, stream: Stream | None) -> Event | None:
        emulator = current.at_work()
        return None if emulator is None or stream is None else emulator.record(stream)

    def wait(self, stream: Stream | None, event: Event | None) -> None:
        if stream is not None and event is not None:
            stream.wait(event)

    def reads_later(self, tensor: torch.Tensor) -> bool:
        return False

    def use(self, tensor: torch.Tensor, stream: Stream | None) -> None:
        mark = mark_of(tensor)
        if mark is not None and mark.block is not None and stream is not None:
            mark.block.use(stream)

    def copy(
        self, tensor: torch.Tensor, place: str, streams: tuple[Any, Any], *, gradient: bool = False
    ) -> torch.Tensor:
        with without_dispatch_modes():  # a transfer is no operation of the model
            emulator = current.at_work()
            shapes = None if emulator is None else emulator.shapes
            # a row of bytes goes from rank to rank
            in_row = self.sends_rows and HOST not in (place, self.place_of(tensor))
            if shapes is not None:
                copied = shapes.copy(tensor, in_row=in_row)
            else:
                copied = copy_from_row(tensor) if in_row else copy_with_layout(tensor, _CPU)
        if emulator is not None:
            emulator.raise_fault()
            self._send(emulator, tensor, copied, place, streams)
        if place != HOST:
            hand_on_age(tensor, copied, place)
        return copied

    def copy_s(self, tensor: torch.Tensor, place: str) -> float:
        emulator = current.at_work()
        launch_s = 0.0 if emulator is None else emulator.cluster.launch_s
        streams = self.transfer_streams(self.place_of(tensor), place)
        begun_s = self.idle_s()
        self.copy(tensor, place, streams)
        return self.idle_s() - begun_s - launch_s

    def spend(self, what: HostWork, place: str, times: int = 1) -> None:
        emulator = current.at_work()
        if emulator is not None:
            emulator.spend(what, emulator.index.get(place, emulator.index_of_host), times)

    @property
    def replicas(self) -> int:
        emulator = current.at_work()
        return 1 if emulator is None else emulator.replicas

    def begin_sum(self, flat: torch.Tensor, place: str) -> Sum | None:
        emulator = self._emulator(place)
        if emulator is None:
            return None
        size = len(emulator.cluster) // emulator.replicas
        ring = range(emulator.index[place] % size, len(emulator.cluster), size)
        return self.sum_issued(emulator, flat, place, ring)

    def end_sum(self, begun: Any, place: str) -> None:
        if begun is not None:
            self.sum_over(begun, place)

    def sum_issued(self, emulator: Emulator, flat: torch.Tensor, place: str, ring: Sequence[int]) -> Sum:
        """The host issues a sum of a ring of devices, each of which has what is to be added up."""
        emulator.raise_fault()
        self.spend("transfer", place)
        with emulator.lock:
            mark = mark_of(flat)
            block = None if mark is None else emulator.allocator.block(flat, mark)
            size_bytes = flat.numel() * flat.element_size()
            return emulator.begin_sum(ring, emulator.index[place], size_bytes, block)

    def sum_over(self, sum_: Sum, place: str) -> None:
        """What is issued at a place from now on comes after a sum."""
        emulator = self._emulator(place)
        if emulator is not None:
            self.wait(self.compute_stream(place), emulator.end_sum(sum_))

    def wait_on_host(self, event: Event | None, place: str) -> None:
        emulator = self._emulator(place)
        if emulator is not None and event is not None:
            emulator.wait_for(event, emulator.index[place])

    def seeded(self, seed: int) -> torch.Tensor:
        return torch.Generator().manual_seed(seed).get_state()

    def random_state(self) -> torch.Tensor:
        return torch.get_rng_state()

    def set_random_state(self, state: torch.Tensor) -> None:
        torch.set_rng_state(state)

    def node_log(self) -> Thread | None:
        emulator = current.at_work()
        return None if emulator is None else emulator.thread

    def nodes_of(self, log: Thread | None) -> AbstractContextManager[None]:
        emulator = current.at_work()
        return _NOTHING if emulator is None or log is None else emulator.thread.nodes_of(log)

    def idle_s(self) -> float:
        emulator = current.at_work()
        if emulator is None:
            return time.perf_counter()
        emulator.synchronize()
        return emulator.thread.host.now_s

    def flag(self) -> Flag:
        emulator = current.at_work()
        if emulator is None:
            return LockFlag()
        return VirtualFlag(emulator.run_token, lambda: emulator.thread.host)

    def spawn(self, function: Callable[[], None], position: int) -> Callable[[], None]:
        emulator = current.at_work()
        if emulator is None:
            return started(function)
        parent = emulator.thread.host
        host = Host(parent.now_s, parent.seen)

        depth = emulator.thread.depth

        def run() -> None:
            emulator.enter_thread(host).depth = depth
            with current.entered():
                function()

        return emulator.run_token.spawn(run, host, position)

    def now_s(self) -> float:
        emulator = current.at_work()
        return time.perf_counter() if emulator is None else emulator.thread.host.now_s

    def give_way(self) -> None:
        emulator = current.at_work()
        if emulator is not None:
            emulator.run_token.give_way(emulator.thread.host)

    def step(self) -> AbstractContextManager[Callable[[], Timeline] | None]:
        emulator = current.at_work()
        return _NOTHING if emulator is None else emulated_step(emulator)

    def at(self, place: str, layer: str | None = None) -> AbstractContextManager[None]:
        emulator = current.at_work()
        if emulator is None or layer is None:
            return _NOTHING
        inside = InLayer(emulator, layer) if layer else InFunctionalOp(emulator)
        if emulator.ranks and place in emulator.index:
            return InRank(emulator, emulator.index[place], inside)
        return inside

    def is_bare(self, *places: str) -> bool:
        return current.at_work() is None

    def enter_layer(self, layer: str) -> str:
        emulator = current.at_work()
        return "" if emulator is None else emulator.enter_layer(layer)

    def _emulator(self, place: str) -> Emulator | None:
        """The emulator, if it is at work and has this device."""
        emulator = current.at_work()
        return emulator if emulator is not None and place in emulator.index else None

    def sent_over(self, emulator: Emulator, tensor: torch.Tensor, place: str, streams: Any) -> float:
        """A tensor goes to a device of another process: when it arrives."""
        with emulator.lock:
            mark = mark_of(tensor)
            read = None if mark is None else emulator.allocator.block(tensor, mark)
            ends = emulator.index[self.place_of(tensor)], emulator.index[place]
            size_bytes = tensor.numel() * tensor.element_size()
            return emulator.ends_s(emulator.send(ends, "copy", (read, None), size_bytes, streams))

    def _send(
        self, emulator: Emulator, tensor: torch.Tensor, copied: torch.Tensor, place: str, streams: Any
    ) -> None:
        host = emulator.index_of_host
        source, target = emulator.index.get(self.place_of(tensor), host), emulator.index.get(place, host)
        if source == target or (source == host and not tensor.numel()):  # as `torch.tensor([], device=..)`
            return
        with emulator.lock:
            read, written = None, None
            mark = mark_of(tensor)
            if source != host and mark is not None:
                read = emulator.allocator.block(tensor, mark)
            if target != host:
                new = emulator.allocate([copied], target, streams[1], "a copy")
                written = new[0] if new else None
            sent_bytes, _ = sent_and_held_bytes(tensor)
            if self.sends_rows and host not in (source, target):
                sent_bytes = tensor.numel() * tensor.element_size()
            emulator.send((source, target), "copy", (read, written), sent_bytes, streams)
            if target == host:
                emulator.wait_for(streams[0].record(), source)
