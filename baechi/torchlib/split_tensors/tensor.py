"""A tensor that lies in pieces along one axis, and acts as one tensor.

    weight (one object, one key, one shape)        axis 0
       ├── pieces[0]   rows 0 to 3        on device 0
       ├── pieces[1]   rows 4 to 7        on device 1
       └── pieces[2]   rows 8 to 9        on device 2

What works element by element runs piece by piece (optimizers, clipping, scaling). What a file or the host
takes is joined on the host. Everything else raises, and says what to do: no device ever holds the whole.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import torch

from baechi.errors import SplitTensorError
from baechi.torchlib.dynamo import uncompiled
from baechi.torchlib.private.modes import without_subclass_function
from baechi.torchlib.private.tensors import TensorBase, make_wrapper
from baechi.torchlib.tensors.layout import contiguous_strides

_OWN = ("pieces", "axis", "lies", "streams")

BEHAVIOUR: dict[str, Callable[..., Any]] = {}
"""What these tensors do; `cutting` fills it, since what they do needs this class."""

FUNCTIONS: dict[Any, Callable[..., Any]] = {}
"""By torch function, what it does on them; filled likewise."""


def _quickly(name: str) -> Any:
    """An attribute of torch's, read without `__torch_function__`, which takes six times as long.

    Args:
        name: one that optimizers ask for at each step.
    """
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


class SplitTensor(torch.Tensor):
    """A tensor in pieces.

    Args:
        pieces: plain tensors without history, alike but for their sizes along the axis.
        axis: the axis along which they lie one after the other.

    Attributes:
        pieces: as given.
        axis: as given, not negative.
        lies: shape, axis, and how long each piece is: what two tensors have alike that are cut at the same
            places. It is asked for at each operation, so it is kept.
        streams: on which the pieces are worked on in backward; see `streams`.
    """

    pieces: list[torch.Tensor]
    axis: int
    lies: tuple[tuple[int, ...], int, tuple[int, ...]]
    streams: tuple[Any, ...] = ()

    @staticmethod
    def __new__(cls, pieces: Sequence[torch.Tensor], axis: int) -> "SplitTensor":
        first = pieces[0]
        axis %= first.dim()
        shape = list(first.shape)
        sizes = tuple([piece.shape[axis] for piece in pieces])
        shape[axis] = sum(sizes)
        made: SplitTensor = make_wrapper(
            cls,
            shape,
            strides=contiguous_strides(shape),
            dtype=first.dtype,
            device=TensorBase.device.__get__(first),
        )
        made.pieces, made.axis, made.lies = list(pieces), axis, (tuple(shape), axis, sizes)
        return made

    def __init__(self, pieces: Sequence[torch.Tensor], axis: int) -> None:
        del pieces, axis  # `__new__` took them

    grad = _quickly("grad")
    shape = _quickly("shape")
    requires_grad = _quickly("requires_grad")
    is_sparse = _quickly("is_sparse")

    @property
    def sizes(self) -> tuple[int, ...]:
        """How long each piece is along the axis."""
        return self.lies[2]

    def like(self, pieces: Sequence[torch.Tensor]) -> "SplitTensor":
        """Other pieces, which lie as these do.

        Args:
            pieces: one for each piece.
        """
        made = SplitTensor(pieces, self.axis)
        if self.streams:
            made.streams = self.streams
        return made

    def on_host(self) -> torch.Tensor:
        """A plain copy of the whole on the host, without history."""
        with torch.no_grad():
            return torch.cat([piece.detach().cpu() for piece in self.pieces], self.axis)

    def beside(self, other: torch.Tensor) -> list[torch.Tensor]:
        """What of another tensor lies beside each piece, on the piece's device.

        Args:
            other: a plain tensor, of which each axis has the size of this one, or one.

        Raises:
            SplitTensorError: it cannot be cut so.
        """
        axis = self.axis + other.dim() - self.dim()
        if other.dim() == 0 or axis < 0 or other.shape[axis] == 1:
            return [other.to(piece.device) for piece in self.pieces]
        if other.shape[axis] != self.shape[self.axis]:
            refuse(f"cutting a tensor of shape {tuple(other.shape)} beside", self)
        cut = other.split(list(self.sizes), axis)
        return [one.to(piece.device) for one, piece in zip(cut, self.pieces, strict=True)]

    # on the class, not in `__torch_function__`: an emulated cluster replaces those of `torch.Tensor`

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """The device of the first piece."""
        return self.pieces[0].device

    def to(self, *args: Any, **kwargs: Any) -> Any:
        """Cast the pieces, or join them on the host; other moves are refused."""
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
            f"{size} on {piece.device}" for size, piece in zip(self.sizes, self.pieces, strict=True)
        )
        grad = ", requires_grad=True" if self.requires_grad else ""
        return f"SplitTensor({tuple(self.shape)}, axis={self.axis}: {places}{grad})"

    def __deepcopy__(self, memo: dict[int, Any]) -> "SplitTensor":
        if id(self) in memo:
            known: SplitTensor = memo[id(self)]
            return known
        if not self.is_leaf:
            raise RuntimeError("only tensors that were not computed from others can be copied deeply")
        made = self.like([copy.deepcopy(piece, memo) for piece in self.pieces])
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


def pieces_beside(
    weight: torch.Tensor, others: Sequence[torch.Tensor]
) -> Iterator[tuple[torch.Tensor, list[torch.Tensor]]]:
    """Each piece of a weight with what lies beside it; a plain weight is one piece.

    Args:
        weight: any tensor.
        others: gradients and optimizer state of it.
    """
    if not isinstance(weight, SplitTensor):
        yield weight, list(others)
        return
    for number, piece in enumerate(weight.pieces):
        yield piece, [other.pieces[number] for other in others if isinstance(other, SplitTensor)]


def refuse(what: str, tensor: torch.Tensor) -> NoReturn:
    """Raise: an operation needs the whole of a tensor that lies in pieces.

    Args:
        what: the operation.
        tensor: the tensor.

    Raises:
        SplitTensorError: always.
    """
    raise SplitTensorError(
        f"{what} a tensor of shape {tuple(tensor.shape)} that lies in pieces ({tensor!r}) is not possible: "
        "it would need the whole on one device. Take .cpu() of it for a copy on the host, "
        "call baechi.restore(model) first, or leave its layer out of split="
    )
