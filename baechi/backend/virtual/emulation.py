"""`with cluster:`: every operation has a device, takes its time there, and has the right to.

inputs on cpu:0                        runs on cpu:0
inputs on cpu:0 and cpu:1              raises, as CUDA does
inputs on cpu:0 and the host           raises, but for scalars (0-dim tensors) and indices
no inputs, `device=cpu:1`              made on cpu:1
no inputs, inside a step               belongs to its first user
`copy_` from one place to another      a transfer
lists over several devices             runs on each of them (optimizers hand over such lists)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from baechi.backend.marks import Mark, mark_of, set_mark
from baechi.backend.operators import Facts, bytes_of, facts_of, flat, flops_of, writes_of
from baechi.backend.virtual import current
from baechi.backend.virtual.blocks import Block
from baechi.backend.virtual.emulator import Emulator
from baechi.backend.virtual.identity import Identity
from baechi.backend.virtual.streams import Stream
from baechi.cost.roofline import layer_s
from baechi.errors import BaechiError
from baechi.records.cluster import Cluster


class Emulation(TorchDispatchMode):
    """The dispatch mode behind `with cluster:`, and what it measured.

    Args:
        cluster: an emulated cluster.

    Raises:
        BaechiError: the cluster is not emulated, or another one is emulated already.
    """

    def __init__(self, cluster: Cluster) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        if not cluster.emulated:
            raise BaechiError(
                "with cluster: emulates a cluster made by Cluster.virtual(...); this one "
                f"({', '.join(cluster.names)}) is real or to plan for, and needs no with"
            )
        self.emulator = Emulator(cluster)
        self._identity = Identity(self.emulator)
        self._devices = cluster.devices
        self._index = self.emulator.index

    def __enter__(self) -> Emulation:
        current.open_with(self.emulator, self)
        self._identity.install()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)  # type: ignore[no-untyped-call]
        self._identity.remove()
        self.emulator.close()
        current.close()
        if exception[0] is None:
            self.emulator.raise_fault()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "prim" or current.at_work() is not self.emulator:
            return func(*args, **kwargs)
        self.emulator.raise_fault()
        facts = facts_of(func)
        with self.emulator.lock:
            if facts.lists:
                return self._run_lists(func, facts, args, kwargs)
            if facts.name in ("copy_", "_to_copy"):
                crossing = self._crossing(facts, args, kwargs)
                if crossing is not None:
                    return self._run_transfer(func, facts, (args, kwargs), crossing)
            return self._run(func, facts, args, kwargs)

    def _run(self, func: Any, facts: Facts, args: Any, kwargs: Any) -> Any:
        given = flat((*args, *kwargs.values())) if kwargs else flat(args)
        device, free = self._device(facts, args, kwargs, given)
        result = func(*args, **kwargs)
        made = flat((result,))
        if device is None:
            if free:
                for tensor in made:
                    if mark_of(tensor) is None:
                        set_mark(tensor, Mark())
            return result
        emulator = self.emulator
        stream = emulator.stream(device)
        self._adopt(facts, args, given, device, stream)
        new = emulator.allocate(made, device, stream, facts.name)
        if facts.kernel:
            self._compute(func, facts, args, kwargs, result, device, (given, made, new))
        if facts.name == "resize_":
            emulator.allocator.resize(args[0])
        return result

    def _compute(
        self, func: Any, facts: Facts, args: Any, kwargs: Any, result: Any, device: int, tensors: Any
    ) -> None:
        given, made, new = tensors
        blocks = self._blocks(given)
        written = self._blocks(writes_of(facts, args, kwargs)) if facts.writes else {}
        read = [block for key, block in blocks.items() if key not in written]
        moved = bytes_of(facts, given, made)
        seconds = self._seconds(device, flops_of(func, args, kwargs, result), moved, given or made)
        self.emulator.compute(device, facts.name, read, [*written.values(), *new], seconds)
        if facts.waits:
            self.emulator.wait_for(self.emulator.stream(device).record(), device)

    def _adopt(self, facts: Facts, args: Any, given: list[torch.Tensor], device: int, stream: Stream) -> None:
        """What belonged nowhere yet belongs to its first user; indices stay with the host."""
        homeless = []
        for tensor in given:
            mark = mark_of(tensor)
            if mark is None:
                unseen = tensor.dim() > 0 and self.emulator.thread.in_backward
            else:
                unseen = mark.place is None
            if unseen and not self._may_lie_on_host(facts, args, tensor):
                homeless.append(tensor)
        if homeless:
            self.emulator.allocate(homeless, device, stream, facts.name)

    def _device(
        self, facts: Facts, args: Any, kwargs: Any, given: list[torch.Tensor]
    ) -> tuple[int | None, bool]:
        """Where an operation runs; None on the host. And whether its results belong nowhere yet."""
        place: str | None = None
        thread = self.emulator.thread
        on_host = False
        free = not given or facts.name == "lift_fresh"
        for tensor in given:
            mark = mark_of(tensor)
            if mark is None or (mark.place is not None and mark.place not in self._index):
                on_host |= tensor.dim() > 0 and not self._may_lie_on_host(facts, args, tensor)
            elif mark.place is None:
                free = True
            elif place is None:
                place = mark.place
            elif place != mark.place:
                raise _mixed(facts, place, mark.place)
        if place is not None:
            # in backward, what has no mark was made out of sight (by a scripted function)
            if on_host and not thread.in_backward:
                raise _mixed(facts, place, "the host")
            return self._index[place], False
        device = kwargs.get("device")
        if device is not None and device.index is not None and not given:
            return self._identity.place_of(device), False
        in_step = thread.depth > 0 or thread.in_backward
        return None, free and in_step and (not on_host or facts.name == "lift_fresh")

    @staticmethod
    def _may_lie_on_host(facts: Facts, args: Any, tensor: torch.Tensor) -> bool:
        positions = facts.host_arguments
        return any(tensor is item for i in positions if i < len(args) for item in flat((args[i],)))

    def _blocks(self, tensors: Iterable[torch.Tensor]) -> dict[int, Block]:
        found: dict[int, Block] = {}
        for tensor in tensors:
            mark = mark_of(tensor)
            if mark is not None and mark.place in self._index:
                block = self.emulator.allocator.block(tensor, mark)
                found[id(block)] = block
        return found

    def _seconds(self, device: int, flops: int, moved_bytes: int, tensors: list[torch.Tensor]) -> float:
        sheet = self._devices[device]
        if not sheet.bytes_per_s or not sheet.flops_per_s:
            return 0.0  # a device without rates is infinitely fast
        dtype = next((_NAMES[t.dtype] for t in tensors if t.dtype in _NAMES), "float32")
        return layer_s(sheet, flops, moved_bytes, dtype) / sheet.speed

    def _crossing(self, facts: Facts, args: Any, kwargs: Any) -> tuple[int, int] | None:
        """From where to where, if this is a transfer."""
        source, target = self._place_of(args[1 if facts.name == "copy_" else 0]), None
        if facts.name == "copy_":
            target = self._place_of(args[0])
        elif kwargs.get("device") is not None and kwargs["device"].index is not None:
            target = self._identity.place_of(kwargs["device"])
        return (source, target) if target is not None and source is not None and source != target else None

    def _devices_of(self, tensors: list[torch.Tensor]) -> set[int]:
        places = {self._place_of(tensor) for tensor in tensors}
        return {place for place in places if place is not None and place < self.emulator.index_of_host}

    def _place_of(self, tensor: torch.Tensor) -> int | None:
        mark = mark_of(tensor)
        if mark is None or mark.place is None:
            return self.emulator.index_of_host if mark is None else None
        return self._index.get(mark.place, self.emulator.index_of_host)

    def _run_transfer(self, func: Any, facts: Facts, call: Any, ends: tuple[int, int]) -> Any:
        (args, kwargs), (source, target) = call, ends
        emulator, host = self.emulator, self.emulator.index_of_host
        sent = args[1 if facts.name == "copy_" else 0]
        result = func(*args, **kwargs)
        if target != host:
            emulator.allocate([result], target, emulator.stream(target), facts.name)
        streams = [emulator.stream(end) for end in ends if end != host]
        blocks = [
            next(iter(self._blocks([tensor]).values()), None) if end != host else None
            for tensor, end in ((sent, source), (result, target))
        ]
        size_bytes = sent.numel() * sent.element_size()
        emulator.send(ends, facts.name, (blocks[0], blocks[1]), size_bytes, (streams[0], streams[-1]))
        if target == host:
            emulator.wait_for(streams[0].record(), source)
        return result

    def _run_lists(self, func: Any, facts: Facts, args: Any, kwargs: Any) -> Any:
        result = func(*args, **kwargs)
        given = flat((*args, *kwargs.values()))
        single = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
        places, bound = self._devices_of(given), self._devices_of(single)
        if bound and len(places) > 1:
            raise _mixed(facts, *[self._devices[place].name for place in sorted(places)][:2])
        results = list(result) if isinstance(result, (list, tuple)) else []
        firsts = list(args[0]) if args and isinstance(args[0], (list, tuple)) else []
        for device in sorted(places):
            here = [tensor for tensor in given if self._place_of(tensor) == device]
            made = [r for r, first in zip(results, firsts, strict=False) if self._place_of(first) == device]
            made = [tensor for tensor in made if isinstance(tensor, torch.Tensor)]
            new = self.emulator.allocate(made, device, self.emulator.stream(device), facts.name)
            blocks = self._blocks(here)
            written = self._blocks(writes_of(facts, args, kwargs))
            read = [block for key, block in blocks.items() if key not in written]
            mine = [block for key, block in blocks.items() if key in written]
            seconds = self._seconds(device, 0, bytes_of(facts, here, made), here)
            self.emulator.compute(device, facts.name, read, [*mine, *new], seconds)
        return result


_NAMES = {
    getattr(torch, name): name
    for name in ("float64", "float32", "float16", "bfloat16", "complex64", "complex128")
}


def _mixed(facts: Facts, *places: str) -> RuntimeError:
    return RuntimeError(
        "Expected all tensors to be on the same device, but found at least two devices, "
        f"{' and '.join(places)}! (when running {facts.name} on the emulated cluster)"
    )
