"""What a worker process does: make the model, then run one chunk after the other until told to end."""

import os
import queue
import signal
import threading
from multiprocessing.connection import Connection
from typing import Any

import torch

from baechi.dispatch.chunks.coupled_rows import refuse_coupled
from baechi.dispatch.replicas.replicas import Replicas
from baechi.dispatch.schedulers.targets import Target
from baechi.dispatch.workers.parcels import packed, packed_error, unpacked
from baechi.dispatch.workers.recipe import Recipe, modules_from
from baechi.errors import FatalError, WorkerError
from baechi.torchlib.tensors.pytree import map_tensors, tensors_in

INTERRUPTED = 128 + signal.SIGINT
"""The exit code of a worker that was interrupted while it had nothing to do."""


def run(connection: Connection, recipe: Recipe, device: str, intra_op_threads: int, name: str) -> None:
    """Serve one caller; the function that a worker process runs."""
    torch.set_num_threads(intra_op_threads)
    where = f"{name} (process {os.getpid()})"
    try:
        worker = _Worker(recipe, device, name)
    except BaseException as error:  # the caller raises it
        connection.send_bytes(packed(("failed", -1, packed_error(error, where))))
        return
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    # a thread reads, so that the caller can always send: else two full pipes could wait for each other
    threading.Thread(target=_read, args=(connection, inbox), daemon=True).start()
    connection.send_bytes(packed(("ready", -1, None)))
    try:
        while True:
            parcel = inbox.get()
            if parcel is None:
                return
            _answer(worker, parcel, connection, where)
    except KeyboardInterrupt:
        os._exit(INTERRUPTED)
    except (BrokenPipeError, ConnectionResetError):  # the caller is gone
        return


def _read(connection: Connection, inbox: "queue.SimpleQueue[Any]") -> None:
    try:
        while True:
            inbox.put(connection.recv_bytes())
    except (EOFError, OSError):  # the caller closed its end, or is gone
        inbox.put(None)


def _answer(worker: "_Worker", parcel: bytes, connection: Connection, where: str) -> None:
    number = -1
    try:
        kind, number, content = unpacked(parcel)
        answer = worker.answer(kind, content)
        if kind != "job":
            return
        reply = packed(("done", number, answer))
    except KeyboardInterrupt:
        error = WorkerError(f"{where} was interrupted (SIGINT) while it ran a chunk")
        reply = packed(("failed", number, packed_error(error, where)))
    except BaseException as error:  # the caller raises it
        reply = packed(("failed", number, packed_error(error, where)))
    connection.send_bytes(reply)


class _Worker:
    """The model in this process, and the one target that it has."""

    def __init__(self, recipe: Recipe, device: str, name: str) -> None:
        self._recipe = recipe
        self._target = Target(name, device)
        self._replicas = Replicas(recipe.model(), [self._target])

    def answer(self, kind: str, content: Any) -> Any:
        """Do what a message says."""
        if kind == "weights":
            self._replicas.stale()
            return None
        if kind == "modules":
            assert self._recipe.memory is not None
            self._replicas = Replicas(modules_from(content, self._recipe.memory), [self._target])
            return None
        state, divided, calls = content
        with state.restored():
            if divided:
                refuse_coupled(self._replicas.model)
            self._replicas.begin()
            replica = self._replicas.at(self._target.name)
            results = replica.finish(replica.launch(calls, divided=True))  # what it writes stays here
            trains = torch.is_grad_enabled()
        if trains and any(tensor.requires_grad for tensor in tensors_in(results)):
            raise FatalError(
                "gradients do not come back from worker processes: call it under torch.no_grad(), or use "
                "workers='thread' to train"
            )
        # a weight that is returned as it is requires a gradient all the same
        return map_tensors(lambda tensor: tensor.detach() if tensor.requires_grad else tensor, results)
