"""What a call of a layer can reach, where the layer is known and its arguments are plain."""

from collections.abc import Hashable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from baechi.run.deferred.tensor import Deferred, is_deferred
from baechi.run.state.contents import Contents, changed_at_launch, look_of
from baechi.run.steady.held import Held, held_by
from baechi.run.steady.layers import LayerFacts
from baechi.torchlib.modules.tables import refill

_SIMPLE = frozenset({type(None), bool, int, float, str, torch.dtype})


class KnownContents:
    """What a call of a known layer can reach.

    Args:
        held: what the layer holds.
        own: its tensors. They are kept until the call launches.
        given: the tensors among the arguments, all of them plain.
        looks: how the arguments look.

    Attributes:
        tensors: all tensors.
    """

    __slots__ = ("given", "held", "looks", "tensors")

    def __init__(
        self, held: Held, own: list[torch.Tensor], given: list[torch.Tensor], looks: Hashable
    ) -> None:
        self.held, self.looks = held, looks
        self.tensors, self.given = own + given, given

    @property
    def state(self) -> Hashable:
        """A key of all that a call's outcome may depend on, except the values in tensors."""
        return self.held.state, self.looks

    def restored(self, name: str) -> AbstractContextManager[None]:
        """Within this context, the layer holds what was noted; see `Contents.restored`.

        Args:
            name: the layer that runs inside.
        """
        return _Restored(self, name)


def holds_as_ever(facts: LayerFacts, tensors: list[torch.Tensor] | None) -> bool:
    """Whether a call is given no deferred value: neither as an argument nor in an attribute of the layer.

    Args:
        facts: what is known of the layer.
        tensors: the tensors among its arguments; None if these are not plain.
    """
    if tensors is None or facts.held is None or any(map(is_deferred, tensors)):
        return False
    return facts.held.is_as_noted()


def contents_of(
    facts: LayerFacts, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], *, short: bool
) -> "Contents | KnownContents":
    """What a call of a layer can reach.

    Args:
        facts: what is known of the layer; what it holds is noted there.
        module: the layer.
        args: positional arguments.
        kwargs: keyword arguments.
        short: whether what was noted may be used.
    """
    given: list[torch.Tensor] = []
    looks = _looks(args, kwargs, given) if short else None
    if looks is None:
        return Contents(module, args, kwargs)
    held = facts.held
    own = held.tensors() if held is not None else None
    if own is None:
        held = facts.held = held_by(module)
        own = held.tensors() if held is not None else None
    if held is None or own is None or not held.ids.isdisjoint(map(id, given)):
        return Contents(module, args, kwargs)
    return KnownContents(held, own, given, looks)


def _looks(args: tuple[Any, ...], kwargs: dict[str, Any], given: list[torch.Tensor]) -> Hashable:
    """How arguments look that are tensors and numbers only, by name; None for others. Fills `given`."""
    looks: list[Any] = []
    for value in (*args, *kwargs.values()) if kwargs else args:
        kind = type(value)
        if kind is Deferred:
            given.append(value)
            looks.append((value.meta, False))
        elif kind is torch.Tensor or kind is torch.nn.Parameter:
            if value.layout is not torch.strided or value.is_nested:
                return None
            given.append(value)
            looks.append((look_of(value), kind is torch.nn.Parameter))
        elif kind in _SIMPLE:
            looks.append((kind, value))
        else:
            return None
    return len(args), tuple(kwargs), tuple(looks)


class _Restored:
    """While a layer launches it holds what was noted; see `Contents.restored`."""

    __slots__ = ("_contents", "_name", "_present")

    def __init__(self, contents: KnownContents, name: str) -> None:
        self._contents, self._name = contents, name
        self._present: list[tuple[Any, Any]] = []

    def __enter__(self) -> None:
        held = self._contents.held
        self._present = [] if held.is_as_noted() else held.refilled()

    def __exit__(self, kind: object, *_: object) -> None:
        held = self._contents.held
        changed = kind is None and not held.keeps_as_found and not held.is_as_noted()
        for table, content in self._present:
            refill(table, content)
        if changed:
            raise changed_at_launch(self._name)
