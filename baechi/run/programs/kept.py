"""What code keeps in attributes and dicts: tensors that a call makes.

capture   torch's compiler says where: an expression of the owner, and the name
bind      tokens stand there, so that it shows if another microbatch reads them; then all is put back
run over  values are put there
"""

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from baechi.torchlib.tensors.pytree import map_tensors

_NONE: Any = object()
"""There is no such attribute."""


@dataclass(eq=False)
class Kept:
    """A place where a call keeps something.

    Args:
        table: a dict, or the attributes of an object.
        name: in that; None for all of it.

    Attributes:
        after: what the call puts there, with tokens for tensors.
    """

    table: MutableMapping[Any, Any]
    name: str | None
    after: Mapping[Any, Any] = field(default_factory=dict)
    _before: Mapping[Any, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._before = self._now()

    def note(self) -> None:
        """The call has put it there."""
        self.after = self._now()

    def put_back(self) -> None:
        """Let it be as it was before the call."""
        self._set(self._before)

    def fill(self, value_of: Callable[[torch.Tensor], Any]) -> None:
        """Put there what the call made."""
        self._set({name: map_tensors(value_of, value) for name, value in self.after.items()})

    def _now(self) -> Mapping[Any, Any]:
        return dict(self.table) if self.name is None else {self.name: self.table.get(self.name, _NONE)}

    def _set(self, content: Mapping[Any, Any]) -> None:
        if self.name is None:
            for key in [key for key in self.table if key not in content]:
                del self.table[key]
        for key, value in content.items():
            if value is _NONE:
                self.table.pop(key, None)
            else:
                self.table[key] = value


def kept_at(kept: Sequence[tuple[str, str | None]], local: Mapping[str, Any]) -> list[Kept]:
    """Where a call keeps something; `local` are the variables that owners are expressions of."""
    owners = [eval(source, {"L": local}) for source, _ in kept]  # torch's own expressions
    return [
        Kept(owner if name is None else vars(owner), name)
        for owner, (_, name) in zip(owners, kept, strict=True)
    ]


def counter_at(owner: str, name: str, local: Mapping[str, Any]) -> str:
    """Where a whole number lies that code counts in; it is the object's own from now on, not its class's."""
    found = eval(owner, {"L": local})  # torch's own expression
    vars(found).setdefault(name, getattr(found, name))
    return f"{owner}.{name}"
