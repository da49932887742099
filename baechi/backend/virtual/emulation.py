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

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from baechi.backend.operators import facts_of
from baechi.backend.virtual import current
from baechi.backend.virtual.emulator import Emulator
from baechi.backend.virtual.identity import Identity
from baechi.backend.virtual.operations import Operations
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
        self._operations = Operations(self.emulator, self._identity.place_of)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else every operation takes a detour that guards against being compiled

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
        emulator = self.emulator
        if current.at_work() is not emulator or func.namespace == "prim":
            return func(*args, **(kwargs or {}))
        if emulator.allocator.fault is not None:
            emulator.raise_fault()
        facts = facts_of(func)
        if facts.aliases:  # a view is where its base is
            if facts.name == "detach":
                self._operations.check_gradient(args[0])
            return func(*args, **(kwargs or {}))
        with emulator.lock:
            return self._operations.run(func, facts, args, kwargs or {})
