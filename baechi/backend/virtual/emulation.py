"""The dispatch mode behind `with cluster:`. Each operation gets an emulated device, and takes its time there.

inputs on cpu:0                        runs on cpu:0
inputs on cpu:0 and cpu:1              raises, as CUDA does
inputs on cpu:0 and the host           raises, except for scalars (0-dim tensors) and indices
no inputs, `device=cpu:1`              the result is made on cpu:1
no inputs, inside a step               the result gets the device of the first operation that uses it
`copy_` from one place to another      a transfer
lists over several devices             runs on each of them (optimizers hand over such lists)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from baechi.backend.processes import size_here
from baechi.backend.virtual import current
from baechi.backend.virtual.data_parallel import data_parallel_refused
from baechi.backend.virtual.identity import Identity
from baechi.backend.virtual.machine.emulator import Emulator
from baechi.backend.virtual.machine.streams import Event, Stream
from baechi.backend.virtual.operations import Operations
from baechi.errors import BaechiError
from baechi.records.cluster import Cluster
from baechi.records.device import HostWork
from baechi.records.timeline import Timeline
from baechi.torchlib.dynamo import CompilerAside, uncompiled
from baechi.torchlib.elsewhere import ElsewhereTensor
from baechi.torchlib.fakes.kernels import ShapeKernels
from baechi.torchlib.left_open import close_left_open
from baechi.torchlib.operators.facts import facts_of, flat, is_composite, notes_views
from baechi.torchlib.private.modes import (
    UntracedDispatchMode,
    dispatch_modes,
    dispatch_notes,
    function_modes_are_on,
    pop_dispatch_mode,
    push_dispatch_mode,
    set_dispatch_modes,
    set_dispatch_notes,
)
from baechi.torchlib.private.operators import composite_kernel, with_views_and_writes_noted
from baechi.torchlib.shards.weight import ShardedWeight


class Emulation(UntracedDispatchMode):
    """The dispatch mode behind `with cluster:`, and what it measured.

    Args:
        cluster: an emulated cluster.
        shapes: for a dry run: infers operators' results without computing them; None runs them for real.
        replicas: for a dry run: into how many groups the devices are divided, of which the first one runs.

    Raises:
        BaechiError: the cluster is not emulated, or another one is emulated already.
    """

    def __init__(self, cluster: Cluster, shapes: ShapeKernels | None = None, replicas: int = 1) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        if not cluster.emulated:
            raise BaechiError(
                f"this cluster ({', '.join(cluster.names)}) is real or to plan for: not emulated"
            )
        if cluster.ranks and cluster.reception != "free":
            raise BaechiError(
                f"{', '.join(cluster.names)} are of several processes, and none of them knows alone which "
                'transfer comes first to a device: emulate them with reception="free"'
            )
        ranks = cluster.ranks if size_here() == 1 else ()
        self.emulator = Emulator(cluster, shapes, ranks, replicas)
        self._identity = Identity(self.emulator)
        self._run_kernel = _run if shapes is None else shapes.run
        self._operations = Operations(self.emulator, self._identity.place_of, self._run_kernel)
        self._contexts, self._compiler_aside = ExitStack(), CompilerAside()

    def __enter__(self) -> Emulation:
        self._before, self._notes, self._is_left = dispatch_modes(), dispatch_notes(), False
        try:
            current.open_with(self.emulator, self)
            self._identity.install()
            self._compiler_aside.__enter__()
            self._contexts.enter_context(data_parallel_refused(self._identity.lies_on_a_device))
            super().__enter__()  # type: ignore[no-untyped-call]
        except BaseException:  # of a signal's handler: it is not left then
            self._leave()
            raise
        return self

    def __exit__(self, *exception: Any) -> None:
        try:
            try:
                if exception[1] is not None:
                    close_left_open(exception[1])
                self.emulator.run_token.finish(self.emulator.thread.host)
            finally:
                self._leave()
        finally:  # an exception of a signal's handler may have come in the line above
            self._leave()
        if exception[0] is None:
            self.emulator.raise_fault()

    def _leave(self) -> None:
        """Leave torch as it was before. It may be interrupted, and done again.

        Modes, and torch's notes of them, are put back from what was there, not by undoing what was entered:
        whatever was interrupted inside, they may be others than those that were on.
        """
        if self._is_left:
            return
        try:
            set_dispatch_modes(self._before)
            set_dispatch_notes(self._notes)
            self._compiler_aside.close()
            self._contexts.close()
            self._identity.remove()
            self.emulator.close()
        finally:
            current.close(self)
        self._is_left = True

    @property
    def now_s(self) -> float:
        """The host's logical clock, in seconds since the emulation began."""
        return self.emulator.thread.host.now_s

    @property
    def peak_bytes(self) -> dict[str, int]:
        """The most that each device held, since the emulation began or a distributed model was called."""
        return self.emulator.allocator.peak_bytes

    @property
    def live_bytes(self) -> dict[str, int]:
        """What each device holds now."""
        return self.emulator.allocator.live_bytes

    @property
    def charged(self) -> Counter[HostWork]:
        """What the host did, and how often, since the emulation began."""
        return self.emulator.charged

    def synchronize(self) -> None:
        """Let the host wait for all devices."""
        self.emulator.synchronize()

    def timeline(self, *, by_operator: bool = False) -> Timeline:
        """What ran since the emulation began, or since a distributed model was called last."""
        return self.emulator.timeline(by_operator=by_operator)

    def stream(self, device: str) -> Stream:
        """A new stream of a device."""
        return Stream(self.emulator.index[device], f"{device}/side")

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        """Compute on a stream, in this thread."""
        streams = self.emulator.thread.streams
        before = streams.get(stream.device)
        streams[stream.device] = stream
        try:
            yield
        finally:
            streams.pop(stream.device)
            if before is not None:
                streams[stream.device] = before

    def record(self, stream: Stream | None = None, device: str | None = None) -> Event:
        """An event that happens when all that is on a stream now is over."""
        return self.emulator.record(stream or self.emulator.stream(self.emulator.index[str(device)]))

    def wait(self, event: Event, stream: Stream | None = None, device: str | None = None) -> None:
        """Let what is put on a stream from now on come after an event."""
        (stream or self.emulator.stream(self.emulator.index[str(device)])).wait(event)

    @uncompiled
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if ShardedWeight in types or ElsewhereTensor in types:
            return NotImplemented  # each shard comes by; what lies elsewhere does nothing here
        emulator = self.emulator
        if current.at_work() is not emulator or func.namespace == "prim":  # `prim` only asks
            return func(*args, **(kwargs or {}))
        if function_modes_are_on():  # a call that bypassed them, as `x.set_(y)` does
            if any(one.requires_grad and hasattr(one, "_baechi_task") for one in flat(args)):
                return NotImplemented  # autograd has seen it already: what waits cannot be recorded any more
            # call it again, so that they see it first: a mode that waits for another thread must not do so
            # while we hold the lock
            return self._again(func, args, kwargs or {})
        if emulator.allocator.fault is not None:
            emulator.raise_fault()
        facts = facts_of(func)
        self._operations.take(func, facts, args)
        if torch.is_inference_mode_enabled() and is_composite(func):  # else torch has decomposed it already
            return self._decomposed(func, args, kwargs or {})
        if facts.aliases:  # a view is where its base is
            if facts.rule.becomes_grad:
                self._operations.check_gradient(args[0])
            result = self._run_kernel(func, args, kwargs or {})
            if isinstance(args[0], torch.Tensor) and args[0].layout is not torch.strided:
                self._operations.follow(args[0], result)
            return result
        with emulator.lock:
            return self._operations.run(func, facts, args, kwargs or {})

    def _again(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Call a function with this mode on, so that this mode sees the operations that it calls."""
        push_dispatch_mode(self)
        try:
            return func(*args, **kwargs)
        finally:
            pop_dispatch_mode()

    def _decomposed(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run the operators that a composite one calls, and let torch note once which results are views."""
        # not a Python kernel, which some operators have besides: it returns copies instead of views
        own = composite_kernel(func)
        if notes_views(func):
            return self._again(own, args, kwargs)
        with with_views_and_writes_noted():
            return self._again(own, args, kwargs)


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    return func(*args, **kwargs)
