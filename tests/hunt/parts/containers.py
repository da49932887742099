"""Objects that code hands around, and layers that are given containers and objects."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


class Note:
    def __init__(self, h: Tensor) -> None:
        self.h = h
        self.others: list[Tensor] = []


class Slots:
    __slots__ = ("h", "scale")

    def __init__(self, h: Tensor, scale: float = 1.0) -> None:
        self.h, self.scale = h, scale


@dataclass
class State:
    h: Tensor
    scale: float = 1.0


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(4, dtype=torch.double))


class TotalOfSeveral(Scaled):
    def forward(self, x: Tensor, values: Iterable[Tensor]) -> Tensor:
        return x * self.weight + sum(values)


class TotalOfPairs(Scaled):
    def forward(self, x: Tensor, values: Iterable[tuple[str, Tensor]]) -> Tensor:
        return x * self.weight + sum(value for _, value in values)


class TotalOfDict(Scaled):
    def forward(self, x: Tensor, values: dict[str, Tensor]) -> Tensor:
        return x * self.weight + sum(values.values())


class TotalOfNested(Scaled):
    def forward(self, x: Tensor, values: dict[str, Any]) -> Any:
        return (x * self.weight + sum(values["hs"])) * values["n"]


class TotalOfNote(Scaled):
    def forward(self, x: Tensor, note: Note) -> Tensor:
        return x * self.weight + note.h + sum(note.others)


class TotalOfState(Scaled):
    def forward(self, x: Tensor, state: State) -> Tensor:
        return x * self.weight + state.h * state.scale


class TimesNumbers(Scaled):
    def forward(self, x: Tensor, numbers: Iterable[float]) -> Tensor:
        return x * self.weight * sum(numbers)


class Remembers(Scaled):
    def forward(self, x: Tensor, cache: list[Tensor]) -> Tensor:
        cache.append(x * self.weight)
        return sum(cache[1:], cache[0])


class WritesNote(Scaled):
    def forward(self, x: Tensor, note: Note) -> Tensor:
        note.h = x * self.weight + note.h
        return x + self.weight


class GivesList(Scaled):
    def forward(self, x: Tensor) -> list[Tensor]:
        return [x * self.weight, x + self.weight]


class GivesDict(Scaled):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"h": x * self.weight, "g": x}


class GivesNote(Scaled):
    def forward(self, x: Tensor) -> Note:
        return Note(x * self.weight)


class GivesState(Scaled):
    def forward(self, x: Tensor) -> State:
        return State(x * self.weight, 0.5)
