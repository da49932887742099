"""`with cluster:`: every operation has a device, and none mixes two of them.

Clocks, streams, memory and the proof of order build on this; here is only where tensors lie.

    inputs on cpu:0 and the host   ->  runs on cpu:0
    inputs on cpu:0 and cpu:1      ->  raises as CUDA does (inside a step and its backward)
    no inputs, or the host's       ->  the result belongs to the host
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from baechi.backend.marks import Mark, mark_of, set_mark
from baechi.backend.virtual.devices import in_step
from baechi.errors import BaechiError
from baechi.records.cluster import HOST, Cluster

_open = threading.local()


class Emulation(TorchDispatchMode):
    """The dispatch mode behind `with cluster:`.

    Args:
        cluster: an emulated cluster.

    Raises:
        BaechiError: the cluster is not emulated, or another one is emulated in this thread.
    """

    def __init__(self, cluster: Cluster) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        if not cluster.emulated:
            raise BaechiError(
                "with cluster: emulates a cluster made by Cluster.virtual(...); this one "
                f"({', '.join(cluster.names)}) is real or to plan for, and needs no with"
            )
        self.names = frozenset(cluster.names)

    def __enter__(self) -> Emulation:
        if getattr(_open, "emulation", None) is not None:
            raise BaechiError("a cluster is emulated already: emulations do not nest")
        _open.emulation = self
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *exception: Any) -> None:
        _open.emulation = None
        super().__exit__(*exception)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "prim":
            return func(*args, **kwargs)
        if _takes_lists(func):
            result = func(*args, **kwargs)
            _settle_pairwise(args, result)
            return result
        place = self._place(func, [*args, *kwargs.values()])
        result = func(*args, **kwargs)
        if place is not None:
            for tensor in _flat([result]):
                if mark_of(tensor) is None:
                    set_mark(tensor, Mark(place))
        return result

    def _place(self, func: Any, values: list[Any]) -> str | None:
        """Where an operation runs: on its inputs' only device; None on the host."""
        places: dict[str, None] = {}
        for tensor in _flat(values):
            mark = mark_of(tensor)
            if mark is not None and mark.place in self.names:
                places[mark.place] = None
        if len(places) > 1 and func not in _CROSSING and in_step():
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, "
                f"{' and '.join(places)}! (when running {func} on the emulated cluster)"
            )
        return next(iter(places), None)


_CROSSING = frozenset({torch.ops.aten.copy_.default})  # torch copies between any two devices


def _takes_lists(func: Any) -> bool:
    name = func.overloadpacket.__name__
    return bool(name.startswith(("_foreach_", "_fused_", "_amp_")))


def _settle_pairwise(args: Any, result: Any) -> None:
    """Optimizers hand over lists that lie on several devices: each result lies with its input."""
    if not (isinstance(result, (list, tuple)) and args and isinstance(args[0], (list, tuple))):
        return
    for source, target in zip(args[0], result, strict=False):
        mark = mark_of(source) if isinstance(target, torch.Tensor) else None
        if mark is not None and mark.place not in (None, HOST) and mark_of(target) is None:
            set_mark(target, Mark(mark.place))


def _flat(values: Iterable[Any]) -> Iterable[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _flat(value)
