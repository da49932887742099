"""Buffers that a model writes in its forward: running means, counters, memories.

one chunk, and no other replica at work     the master has the buffer as the model wrote it
several chunks, or several replicas         refused: each would begin with another value

A buffer is written in place, or replaced by one with other values. One of another shape is a cache that grew.
"""

import torch
from torch import nn

from baechi.backend import AbstractBackend
from baechi.backend.transfer import transfer
from baechi.errors import FatalError
from baechi.run.step.loans import version_of


class OwnBuffers:
    """A replica's buffers, beside the master's.

    Args:
        model: the replica's modules.
        master: the user's model.
    """

    def __init__(self, model: nn.Module, master: nn.Module) -> None:
        self._model = model
        here = dict(model.named_buffers())
        both = [(name, here[name], there) for name, there in master.named_buffers() if name in here]
        self._pairs = [pair for pair in both if pair[1].shape == pair[2].shape]
        self._versions = [version_of(own) for _, own, _ in self._pairs]

    def settle(self, backend: AbstractBackend, *, alone: bool) -> None:
        """Bring home what the model wrote."""
        replaced = self._replaced(backend)
        versions = [version_of(own) for _, own, _ in self._pairs]
        if versions == self._versions and not replaced:
            return
        written = [
            name
            for (name, *_), old, new in zip(self._pairs, self._versions, versions, strict=True)
            if old != new or name in replaced
        ]
        if not alone:
            raise FatalError(_written(written[0]))
        layers = {name.rpartition(".")[0] for name in written}  # batch norm counts one write of its three
        for name, own, there in self._pairs:
            if own is not there and name.rpartition(".")[0] in layers:
                with torch.no_grad():
                    there.copy_(transfer(own.detach(), backend, backend.place_of(there)))
        self._versions = versions

    def _replaced(self, backend: AbstractBackend) -> list[str]:
        """Buffers that the model replaced by others of their shape with other values."""
        now, found = dict(self._model.named_buffers()), []
        for name, own, there in self._pairs:
            new = now.get(name)
            if new is None or new is own or (new.shape, new.dtype) != (own.shape, own.dtype):
                continue
            home = backend.place_of(there)
            one, other = [transfer(value.detach(), backend, home) for value in (own, new)]
            if own is not there:  # a copy of the modules is used again: what follows the master stays in it
                owner, _, attribute = name.rpartition(".")
                setattr(self._model.get_submodule(owner), attribute, own)
            if torch.equal(one, other):
                continue
            found.append(name)
            if own is not there:
                with torch.no_grad():
                    own.copy_(new.detach())
        return found


def _written(name: str) -> str:
    return (
        f"the model writes its buffer {name!r} in its forward, so what a chunk gives depends on the chunks "
        "before it, and worker processes would keep it for themselves. Call .eval(), or keep the whole batch "
        "in one chunk in this process"
    )
