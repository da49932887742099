"""A sharded weight, gradient or part of an optimizer's state: for autograd and for optimizers one tensor.

What works element by element runs shard by shard (optimizers, clipping, scaling). What a file or the host
takes is joined on the host. Everything else raises, and says what to do: no device ever holds the whole.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch

from baechi.errors import ShardedTensorError
from baechi.torchlib.dynamo import uncompiled
from baechi.torchlib.private.modes import without_subclass_function
from baechi.torchlib.private.tensors import TensorBase
from baechi.torchlib.shards.tensor import ShardedTensor

_OWN = ("shards", "axis", "lies", "streams")

BEHAVIOUR: dict[str, Callable[..., Any]] = {}
"""What these tensors do; `cutting` fills it, since what they do needs this class."""

FUNCTIONS: dict[Any, Callable[..., Any]] = {}
"""By torch function, what it does on them; filled likewise."""


def _quickly(name: str) -> Any:
    """An attribute of torch's, read without `__torch_function__`, which takes six times as long."""
    attribute = getattr(TensorBase, name)

    @uncompiled
    def read(tensor: torch.Tensor) -> Any:
        with without_subclass_function():
            return attribute.__get__(tensor)

    @uncompiled
    def write(tensor: torch.Tensor, value: Any) -> None:
        with without_subclass_function():
            attribute.__set__(tensor, value)

    @uncompiled
    def forget(tensor: torch.Tensor) -> None:
        with without_subclass_function():
            attribute.__delete__(tensor)

    return property(read, write, forget, doc=attribute.__doc__)


class ShardedWeight(ShardedTensor):
    """A sharded tensor whose shards have no history; it has one itself, or is a leaf.

    Attributes:
        streams: on which the shards are worked on in backward; see `streams`.
    """

    streams: tuple[Any, ...] = ()

    grad = _quickly("grad")
    shape = _quickly("shape")
    requires_grad = _quickly("requires_grad")
    is_sparse = _quickly("is_sparse")

    def like(self, shards: Sequence[torch.Tensor]) -> "ShardedWeight":
        """Other shards, which lie as these do."""
        made = ShardedWeight(shards, self.axis)
        if self.streams:
            made.streams = self.streams
        return made

    def on_host(self) -> torch.Tensor:
        """A plain copy of the whole on the host, without history."""
        with torch.no_grad():
            return torch.cat([shard.detach().cpu() for shard in self.shards], self.axis)

    def beside(self, other: torch.Tensor) -> list[torch.Tensor]:
        """What of another tensor lies beside each shard, on the shard's device."""
        axis = self.axis_in(other)
        if axis is None:
            return [other.to(shard.device) for shard in self.shards]
        if other.shape[axis] != self.shape[self.axis]:
            refuse(f"cutting a tensor of shape {tuple(other.shape)} beside", self)
        cut = other.split(list(self.sizes), axis)
        return [one.to(shard.device) for one, shard in zip(cut, self.shards, strict=True)]

    # on the class, not in `__torch_function__`: an emulated cluster replaces those of `torch.Tensor`

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """The device of the first shard."""
        return self.shards[0].device

    def to(self, *args: Any, **kwargs: Any) -> Any:
        """Cast the shards, or join them on the host; other moves are refused."""
        return BEHAVIOUR["to"](self, *args, **kwargs)

    def cpu(self, memory_format: torch.memory_format = torch.preserve_format) -> torch.Tensor:
        """The whole, on the host."""
        del memory_format
        joined: torch.Tensor = self.to("cpu")
        return joined

    def numpy(self, *, force: bool = False) -> Any:
        """The whole, on the host, as an array: a copy."""
        if self.requires_grad and not force:
            raise RuntimeError("numpy() of a tensor that requires a gradient: call detach() first")
        return self.on_host().numpy()

    def tolist(self) -> Any:
        """The whole as a nested list."""
        return self.on_host().tolist()

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        del tensor_contents
        places = ", ".join(
            f"{size} on {shard.device}" for size, shard in zip(self.sizes, self.shards, strict=True)
        )
        grad = ", requires_grad=True" if self.requires_grad else ""
        return f"ShardedWeight({tuple(self.shape)}, axis={self.axis}: {places}{grad})"

    def __deepcopy__(self, memo: dict[int, Any]) -> "ShardedWeight":
        if id(self) in memo:
            known: ShardedWeight = memo[id(self)]
            return known
        if not self.is_leaf:
            raise RuntimeError("only tensors that were not computed from others can be copied deeply")
        made = self.like([copy.deepcopy(shard, memo) for shard in self.shards])
        made.requires_grad_(self.requires_grad)
        memo[id(self)] = made
        for name, value in vars(self).items():
            if name not in _OWN:
                setattr(made, name, copy.deepcopy(value, memo))
        if self.grad is not None and not isinstance(self, torch.nn.Parameter):  # whose copies have none
            made.grad = copy.deepcopy(self.grad, memo)
        return made

    def __reduce_ex__(self, protocol: Any) -> Any:
        """In a file it is one plain tensor on the host, which torch alone can read."""
        return BEHAVIOUR["write"](self).__reduce_ex__(protocol)

    @classmethod
    @uncompiled
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        known: Callable[..., Any] | None = FUNCTIONS.get(func)
        if known is not None:
            return known(*args, **(kwargs or {}))
        with without_subclass_function():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return BEHAVIOUR["operator"](func, args, kwargs or {})


def refuse(what: str, tensor: torch.Tensor) -> NoReturn:
    """Raise: an operation needs the whole of a sharded tensor."""
    raise ShardedTensorError(
        f"{what} a tensor of shape {tuple(tensor.shape)} that is sharded ({tensor!r}) is not possible: "
        "it would need the whole on one device. Take .cpu() of it for a copy on the host, "
        "call baechi.restore(model) first, or leave its layer out of split="
    )
