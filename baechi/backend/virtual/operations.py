"""Operations on an emulated cluster: which device runs each, for how long, and which memory it uses."""

from collections.abc import Callable, Iterable
from typing import Any

import torch

from baechi.backend.virtual.machine.blocks import Block
from baechi.backend.virtual.machine.emulator import Emulator
from baechi.backend.virtual.machine.work import Due
from baechi.backend.virtual.work_of import work_of
from baechi.torchlib.host_work import work_of_operator
from baechi.torchlib.operators.facts import (
    Facts,
    flat,
    host_waits,
    is_kernel,
    may_lie_on_host,
    writes_of,
)
from baechi.torchlib.private.autograd import current_autograd_node, current_graph_task_id
from baechi.torchlib.shards.weight import ShardedWeight
from baechi.torchlib.tensors.storage import Mark, mark_of, set_mark

RunKernel = Callable[[Any, Any, dict[str, Any]], Any]

_NO_DEVICE = -1

_MOST_DUE = 100
"""Maximum kernels (`Due`) kept for a tensor without a place; its first user's device is charged for them."""


class Operations:
    """Runs operations at once on the host, and reports to the emulator what devices would do.

    Args:
        emulator: keeps clocks and memory.
        place_of_device: returns the index in the cluster of a torch device.
        run_kernel: runs an operator with its arguments.
    """

    def __init__(
        self, emulator: Emulator, place_of_device: Callable[[torch.device], int], run_kernel: RunKernel
    ) -> None:
        self._emulator = emulator
        self._index = emulator.index
        self._host = emulator.index_of_host
        self._devices = emulator.cluster.devices
        self._place_of_device = place_of_device
        self._run_kernel = run_kernel

    def take(self, func: Any, facts: Facts, args: Any) -> None:
        """Charge the calling thread with what torch takes of the host for an operator."""
        emulator, given = self._emulator, flat(args)
        device = None
        if emulator.thread.in_backward:
            marks = [mark_of(tensor) for tensor in given]
            device = next(
                (self._index[m.place] for m in marks if m is not None and m.place in self._index), None
            )
            if emulator.thread.enters_node():
                emulator.take("node", device=device)
        elif torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given):
            emulator.take("recorded")
        if facts.rule.lists:
            emulator.take("list", device=device)
            emulator.take("list_tensor", len(flat(args[:1])), device)
        else:
            emulator.take(work_of_operator(func, facts), device=device)

    def run(self, func: Any, facts: Facts, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run an operation that is not a view."""
        rule = facts.rule
        if rule.lists:
            return self._run_lists(func, facts, args, kwargs)
        if rule.new_memory:  # `set_`: the tensor lies where its new storage does
            return self._run_kernel(func, args, kwargs)
        if rule.copies is not None:
            sent = args[rule.copies]
            ends = self._transfer_ends(facts, sent, args, kwargs)
            if ends is not None:
                return self._run_transfer(func, facts, sent, (args, kwargs), ends)
        given = flat((*args, *kwargs.values())) if kwargs else flat(args)
        marks = [mark_of(tensor) for tensor in given]
        asked: Any = kwargs.get("device") if rule.copies is None else None
        # a factory that is told the device takes from other tensors no more than a shape
        shapes_only = asked is not None and asked.index is not None
        if shapes_only:
            device, stays_unplaced, unplaced = self._place_of_device(asked), False, list[torch.Tensor]()
        else:
            device, stays_unplaced, unplaced = self._device(facts, args, kwargs, given, marks)
        result = self._run_kernel(func, args, kwargs)
        made = [result] if isinstance(result, torch.Tensor) else flat((result,))
        if device == _NO_DEVICE:
            if stays_unplaced:
                self._leave_unplaced(func, facts, (args, kwargs, result), (given, made))
            return result
        stream = self._emulator.stream(device)
        if unplaced:
            self._emulator.take_in(unplaced, device, facts.name)
            marks = [mark_of(tensor) for tensor in given]
        new = self._emulator.allocate(made, device, stream, facts.name)
        if facts.kernel:
            read = {} if shapes_only else self._blocks(given, marks)
            written = [*new, *self._written(facts, args, kwargs, read)]
            work = work_of(func, facts, (args, kwargs, result), (given, made))
            self._emulator.compute(device, facts.name, list(read.values()), written, work)
            if host_waits(facts, args):
                self._emulator.wait_for(stream.record(), device)
        elif rule.resizes:
            self._emulator.allocator.resize(args[0])
        return result

    def follow(self, base: torch.Tensor, result: Any) -> None:
        """Put what is taken from a sparse tensor on the tensor's device: a part, or a copied view."""
        place = self._place_of(base)
        if place is not None and place != self._host:
            self._emulator.allocate(flat((result,)), place, self._emulator.stream(place), "a sparse view")

    def check_gradient(self, grad: torch.Tensor) -> None:
        """Check that a gradient which becomes a parameter's `grad` lies where the parameter lies."""
        if current_graph_task_id() == -1:
            return
        node: Any = current_autograd_node()
        if type(node).__name__ != "AccumulateGrad" or isinstance(node.variable, ShardedWeight):
            return
        here, home = self._place_of(grad), self._place_of(node.variable)
        if here is not None and home is not None and here != home:
            names = (*self._emulator.cluster.names, "the host")
            raise RuntimeError(
                f"the gradient of a parameter of shape {tuple(node.variable.shape)} on {names[home]} lies "
                f"on {names[here]}: a transfer's backward must bring it home"
            )

    def _device(
        self,
        facts: Facts,
        args: Any,
        kwargs: dict[str, Any],
        given: list[torch.Tensor],
        marks: list[Mark | None],
    ) -> tuple[int, bool, list[torch.Tensor]]:
        """Where an operation runs, if on a device."""
        place: str | None = None
        thread = self._emulator.thread
        on_host = False
        unplaced: list[torch.Tensor] = []
        for tensor, mark in zip(given, marks, strict=True):
            if mark is None or (mark.place is not None and mark.place not in self._index):
                on_host |= tensor.dim() > 0 and not may_lie_on_host(facts, args, tensor)
            elif mark.place is None:
                unplaced.append(tensor)
            elif place is None:
                place = mark.place
            elif place != mark.place:
                raise _mixed(facts, place, mark.place, called=thread.depth > 0)
        if place is not None:
            if on_host:
                raise _mixed(facts, place, "the host", called=thread.depth > 0)
            unplaced = [tensor for tensor in unplaced if not may_lie_on_host(facts, args, tensor)]
            return self._index[place], False, unplaced
        if unplaced and not on_host:
            return _NO_DEVICE, True, unplaced
        # torch's internal calls do not pass `pin_memory`: their temporaries lie on the current device
        by_torch = not given and "pin_memory" not in kwargs
        # what torch, a step or backward makes of no tensor gets a place later; what the caller's code makes
        # lies on the host, as `torch.zeros(3)` does beside CUDA
        fresh = not given or facts.rule.fresh
        return _NO_DEVICE, fresh and (by_torch or thread.depth > 0 or thread.in_backward), unplaced

    def _leave_unplaced(self, func: Any, facts: Facts, call: Any, tensors: Any) -> None:
        """Leave results without a place. The device of their first user is charged for this operation."""
        (args, kwargs, _), (given, made) = call, tensors
        due = list(dict.fromkeys([one for tensor in given for one in getattr(mark_of(tensor), "due", ())]))
        if is_kernel(func, args, kwargs):
            due.append(Due(facts.name, work_of(func, facts, call, tensors)))
        for tensor in made:
            mark = mark_of(tensor)
            if mark is None:
                mark = Mark()
                set_mark(tensor, mark)
            mark.due = due[-_MOST_DUE:]

    def _blocks(self, tensors: list[torch.Tensor], marks: list[Mark | None]) -> dict[int, Block]:
        """The memory blocks of tensors on devices, by id; one for tensors that share memory."""
        allocator, found = self._emulator.allocator, {}
        for tensor, mark in zip(tensors, marks, strict=True):
            if mark is not None and mark.place in self._index:
                block: Block = mark.block
                if block is None or block.owner is not allocator:
                    block = allocator.block(tensor, mark)
                found[id(block)] = block
        return found

    def _written(
        self, facts: Facts, args: Any, kwargs: dict[str, Any], read: dict[int, Block]
    ) -> Iterable[Block]:
        """The blocks that an operation writes in place, which are removed from those that it reads."""
        if not facts.writes:
            return ()
        written = self._blocks_of(writes_of(facts, args, kwargs))
        for key in written:
            read.pop(key, None)
        return written.values()

    def _transfer_ends(
        self, facts: Facts, sent: torch.Tensor, args: Any, kwargs: Any
    ) -> tuple[int, int] | None:
        """Source and target place, if the copy goes from one place to another."""
        source, target = self._place_of(sent), None
        if facts.writes:
            target = self._place_of(args[0])
        elif kwargs.get("device") is not None and kwargs["device"].index is not None:
            target = self._place_of_device(kwargs["device"])
        return (source, target) if target is not None and source is not None and source != target else None

    def _devices_of(self, tensors: list[torch.Tensor]) -> list[int]:
        places = {self._place_of(tensor) for tensor in tensors}
        return sorted([place for place in places if place is not None and place < self._host])

    def _place_of(self, tensor: torch.Tensor) -> int | None:
        """The index of a tensor's device, or of the host; None if it has no place yet."""
        mark = mark_of(tensor)
        if mark is None or mark.place is None:
            return self._host if mark is None else None
        return self._index.get(mark.place, self._host)

    def _run_transfer(
        self, func: Any, facts: Facts, sent: torch.Tensor, call: Any, ends: tuple[int, int]
    ) -> Any:
        (args, kwargs), (source, target) = call, ends
        emulator, host = self._emulator, self._host
        result = self._run_kernel(func, args, kwargs)
        tx = None if source == host else emulator.stream(source)
        rx = None if target == host else emulator.stream(target)
        if rx is not None:
            emulator.allocate([result], target, rx, facts.name)
        blocks = [next(iter(self._blocks_of([tensor]).values()), None) for tensor in (sent, result)]
        size_bytes = sent.numel() * sent.element_size()
        emulator.send(ends, facts.name, (blocks[0], blocks[1]), size_bytes, (tx, rx))
        if tx is not None and target == host:
            emulator.wait_for(tx.record(), source)
        return result

    def _run_lists(self, func: Any, facts: Facts, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run an operation on lists, on each device that they lie on; results lie where their inputs do."""
        given = flat((*args, *kwargs.values()))
        lone = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
        devices = self._devices_of(given)
        if len(devices) > 1 and self._devices_of(lone):
            raise _mixed(facts, *[self._devices[device].name for device in devices][:2])
        if devices and any(mark_of(tensor) is None and tensor.dim() for tensor in given):
            raise _mixed(facts, self._devices[devices[0]].name, "the host")
        result = self._run_kernel(func, args, kwargs)
        results = flat((result,))
        writing = list(writes_of(facts, args, kwargs))
        written = self._blocks_of(writing)
        for device in devices:
            stream = self._emulator.stream(device)
            here = [tensor for tensor in given if self._place_of(tensor) == device]
            made = [
                r
                for first, r in zip(flat(args[:1]), results, strict=False)
                if self._place_of(first) == device
            ]
            new = self._emulator.allocate(made, device, stream, facts.name)
            blocks = self._blocks_of(here)
            read = [block for key, block in blocks.items() if key not in written]
            writes = [*new, *[block for key, block in blocks.items() if key in written]]
            put = made or [tensor for tensor in writing if self._place_of(tensor) == device]
            work = work_of(func, facts, (args, kwargs, result), (here, put))
            self._emulator.compute(device, facts.name, read, writes, work)
        return result

    def _blocks_of(self, tensors: Iterable[torch.Tensor]) -> dict[int, Block]:
        known = list(tensors)
        return self._blocks(known, [mark_of(tensor) for tensor in known])


def _mixed(facts: Facts, *places: str, called: bool = True) -> RuntimeError:
    """The error for tensors on several devices, in torch's words; and what to do where no model is called."""
    cure = (
        ". Between calls of a distributed model nothing is moved: use .to(...), or change its weights (merge "
        "adapters, say) after baechi.restore(model)"
    )
    return RuntimeError(
        "Expected all tensors to be on the same device, but found at least two devices, "
        f"{' and '.join(places)}! (when running {facts.name} on the emulated cluster){'' if called else cure}"
    )
