"""Random numbers of checkpointed regions, on every device that the region computes on.

Torch saves the generator states of the devices where a region's arguments lie. It restores them when it
recomputes the region in backward. A layer on another device would draw other numbers, without an error.
So the generators of all devices of distributed models are saved, for regions inside and around a model.

    thread of device 0   ..[states of region A]--draws--[states as before]
    thread of device 1   ........................waits..................[states of region B]--draws--..

Backward has a thread for each device. Two regions recomputed at once would draw each other's numbers,
so the second one waits until the first is done.
"""

import threading
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from baechi.backend import AbstractBackend
from baechi.torchlib.private.autograd import current_graph_task_id
from baechi.torchlib.private.modes import device_of
from baechi.torchlib.private.patches import CHECKPOINT_DEVICE, CHECKPOINT_STATES, FORK_RNG
from baechi.torchlib.random_state import state_of
from baechi.torchlib.tensors.pytree import tensors_in

_in_use: weakref.WeakSet[AbstractBackend] = weakref.WeakSet()

_one_region = threading.RLock()
_PATIENCE_S = 20.0
"""How long a thread waits for its turn. It then goes on, since a region with a backward of its own may in
turn wait for this thread."""


def keep_generators(backend: AbstractBackend) -> None:
    """Make checkpointing save the generators of a cluster's devices, as long as the cluster is in use."""
    if backend.generators():
        _in_use.add(backend)
        CHECKPOINT_STATES.put(_get_device_states)
        CHECKPOINT_DEVICE.put(_infer_device_type)
        FORK_RNG.put(_fork_rng)


def _devices() -> list[torch.device]:
    return sorted({device for backend in _in_use for device in backend.generators()}, key=str)


def _get_device_states(*args: Any) -> tuple[list[int], list[torch.Tensor]]:
    for backend in _in_use:
        backend.draw_everywhere()
    indices, states = CHECKPOINT_STATES.original(*args)
    kind = _infer_device_type(*args)
    for device in _devices():
        if device.type == kind and device.index not in indices:
            indices.append(device.index)
            states.append(state_of(device))
    return indices, states


def _infer_device_type(*args: Any) -> str:
    """The device type whose generators are saved; the cluster's, if all arguments lie on the host."""
    on_host = all(device_of(tensor).type in ("cpu", "meta") for tensor in tensors_in(args))
    ours = _devices() if on_host else []
    if ours:
        return ours[0].type
    return str(CHECKPOINT_DEVICE.original(*args)) if CHECKPOINT_DEVICE.exists else "cuda"


@contextmanager
def _fork_rng(*args: Any, **kwargs: Any) -> Iterator[None]:
    """`torch.random.fork_rng`, with a lock: one thread of a backward at a time."""
    in_backward = current_graph_task_id() != -1
    alone = in_backward and len(_in_use) > 0 and _one_region.acquire(timeout=_PATIENCE_S)
    try:
        with ExitStack() as stack:
            for backend in _in_use if in_backward else ():
                stack.enter_context(backend.drawing_again())
            with FORK_RNG.original(*args, **kwargs):
                yield
    finally:
        if alone:
            _one_region.release()
