"""Random numbers of a batch, drawn once for the whole of it, and given to its parts row by row.

    the whole   rand(8, 3) ─▶ noted
    part 1      rand(2, 3) ─▶ rows 2, 3 of what was noted

So a model that draws can be compared with itself. A dropout drops nothing: what is drawn by a probability
becomes that probability.
"""

from typing import Any

import torch

from baechi.torchlib.operators.facts import draws
from baechi.torchlib.private.modes import UntracedDispatchMode, without_dispatch_modes
from baechi.torchlib.private.operators import schema_of
from baechi.torchlib.tensors.pytree import tensors_in

_PLACES = ("randperm", "multinomial")
"""Operators that draw numbers of rows: those of the whole are none of a part."""


class Draws(UntracedDispatchMode):
    """The draws of a model's code, and how precise its numbers are.

    Attributes:
        are_strange: whether a part drew what is no rows of what the whole drew.
        unit: the largest unit in the last place, near 1, of the floating numbers that were made.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.are_strange, self.unit = False, torch.finfo(torch.float64).eps
        self._noted: list[torch.Tensor] = []
        self._asked = 0
        self._part: tuple[int, int, int] | None = None

    def whole(self) -> None:
        """What is drawn from now on is the whole batch's."""
        self._noted, self._asked, self._part, self.are_strange = [], 0, None, False

    def part(self, first: int, rows: int, of: int) -> None:
        """What is drawn from now on is a part's."""
        self.end()
        self._asked, self._part = 0, (first, rows, of)

    def end(self) -> None:
        """A part is over: it should have drawn as often as the whole."""
        self.are_strange |= self._part is not None and self._asked != len(self._noted)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator; what it drew becomes what it should have drawn."""
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags or not draws(func, args, kwargs):
            return self._measured(func(*args, **kwargs))
        name = func.overloadpacket.__name__
        if "dropout" in name:
            return self._measured(func(*_without(func, args, "p"), **kwargs))
        if any(one.name == "dropout_p" for one in schema_of(func).arguments):
            kwargs = {key: value for key, value in kwargs.items() if key != "dropout_p"}
            return self._measured(func(*_without(func, args, "dropout_p"), **kwargs))
        result = func(*args, **kwargs)
        for made in tensors_in(result):
            with without_dispatch_modes(), torch.no_grad():
                if name.startswith("bernoulli"):
                    _expect(made, args, kwargs, in_place=name.endswith("_"))
                else:
                    self._give(made, name)
        return result

    def _measured(self, result: Any) -> Any:
        for made in (result,) if isinstance(result, torch.Tensor) else tensors_in(result):
            if made.dtype.is_floating_point and made.dtype != torch.float64:
                self.unit = max(self.unit, torch.finfo(made.dtype).eps)
        return result

    def _give(self, made: torch.Tensor, name: str) -> None:
        """Note what the whole drew; put its rows in what a part drew."""
        if self._part is None:
            self._noted.append(made.detach().clone())
            return
        place, self._asked = self._asked, self._asked + 1
        noted = self._noted[place] if place < len(self._noted) else None
        found = None if noted is None else _rows_of(noted, made, self._part)
        if found is None or (noted is not None and name in _PLACES and noted.shape != made.shape):
            self.are_strange = True
        else:
            made.detach().copy_(found)


def _rows_of(noted: torch.Tensor, made: torch.Tensor, part: tuple[int, int, int]) -> torch.Tensor | None:
    """The rows of what the whole drew that a part should have; None if it is no matter of rows."""
    first, rows, of = part
    if noted.shape == made.shape:
        return noted
    if noted.dim() != made.dim():
        return None
    sizes = enumerate(zip(noted.shape, made.shape, strict=True))
    other = [(dim, one, few) for dim, (one, few) in sizes if one != few]
    if len(other) != 1:
        return None
    dim, one, few = other[0]
    times = one // of
    if one != times * of or few != times * rows:
        return None
    return noted.narrow(dim, times * first, few).to(made.device)


def _expect(made: torch.Tensor, args: Any, kwargs: Any, *, in_place: bool) -> None:
    """A probability in the place of what is drawn by it."""
    chance: Any = kwargs.get("p", args[1] if len(args) > 1 else None)
    if chance is None:
        chance = 0.5 if in_place else args[0]
    if isinstance(chance, torch.Tensor):
        made.detach().copy_(chance.detach().expand_as(made))
    else:
        made.detach().fill_(chance)


def _without(func: Any, args: Any, name: str) -> tuple[Any, ...]:
    """Positional arguments with no chance to drop anything."""
    names = [one.name for one in schema_of(func).arguments]
    return tuple([0.0 if key == name else value for key, value in zip(names, args, strict=False)])
